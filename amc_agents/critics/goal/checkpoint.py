"""What `amc train goal` saves: two small networks, what to feed them, and proof that it is fed right.

    amc_goal.json               settings, metrics, golden texts and scores; names the weights' file
    goal-<hash>.safetensors     weights, and the embeddings of the golden texts

Another embedding model gives other vectors, of which the networks still make numbers: the golden texts are embedded
again at the first use, and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, Strict
from safetensors import SafetensorError
from safetensors.numpy import load, save

from amc_agents.critics.goal.calibration import Calibration
from amc_agents.critics.goal.embeddings import Vectors
from amc_agents.critics.saved import Number, SavedFields, TokenCount, read_saved
from amc_agents.errors import CheckpointError
from amc_agents.files import replace_file
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import FloatArray

FILE = "amc_goal.json"
"""Name of the JSON in a checkpoint's folder."""
VERSION = 1


@dataclass(frozen=True)
class GoalNetwork:
    """Q(s, a, g) and V(s, g) over embeddings, in numpy. `n` rows, `D` dimensions.

    A network is linear layers with ReLU between them: `<name>.<i>.weight` `[out, in]` and `<name>.<i>.bias` `[out]` for
    the names q (q2 too with twins: the smaller counts) and v.
    """

    weights: Mapping[str, Vectors]
    scale: float
    """Embeddings are multiplied by it, so that their coordinates are about 1 in size."""
    nearness: bool = True
    """Whether the inner products with the goal are inputs too."""

    def q(self, states: Vectors, thoughts: Vectors, goals: Vectors) -> FloatArray:
        """`[n]` Q of rows of embeddings `[n, D]`; near [0, 1], not forced into it."""
        inputs = self._features(states, thoughts, goals)
        found = self._run("q", inputs)
        return np.minimum(found, self._run("q2", inputs)) if "q2.0.weight" in self.weights else found

    def v(self, states: Vectors, goals: Vectors) -> FloatArray:
        """`[n]` V of rows of embeddings `[n, D]`."""
        return self._run("v", self._features(states, goals))

    def _features(self, *embeddings: Vectors) -> Vectors:
        """`[n, inputs]`: the embeddings side by side (the goal's last), then how near each is to the goal."""
        scaled = [self.scale * one for one in embeddings]
        *others, goals = scaled
        if self.nearness:
            scaled += [np.sum(one * goals, axis=1, keepdims=True) / np.sqrt(goals.shape[1]) for one in others]
        return np.concatenate(scaled, axis=1).astype(np.float32)

    def _run(self, name: str, rows: Vectors) -> FloatArray:
        n_layers = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in self.weights)
        for layer in range(n_layers):
            rows = rows @ self.weights[f"{name}.{layer}.weight"].T + self.weights[f"{name}.{layer}.bias"]
            if layer + 1 < n_layers:
                rows = np.maximum(rows, 0.0)
        return rows[:, 0].astype(np.float64)


@dataclass(frozen=True)
class GoldenTriple:
    """A state, a thought and a goal, and what the trained network says of them."""

    state: str
    thought: str
    goal: str
    q: float


@dataclass(frozen=True)
class GoalCheckpoint:
    """A trained goal critic."""

    network: GoalNetwork
    dimensions: int
    """D."""
    embeddings: str
    """The embedding model that it was trained on."""
    summary: str
    """How states are described: "none", a chat model, or the name of a function."""
    golden: tuple[GoldenTriple, ...]
    golden_vectors: Vectors
    """`[golden, 3, D]` embeddings of the golden texts, as in training."""
    tolerance: float = 0.02
    """How far a golden score may be off, through embeddings of less precision."""
    prompt: str | None = None
    """Of a chat model's summary."""
    calibration: Calibration | None = None
    """Q -> probability; None: Q itself, cut to [0, 1]."""
    data_hash: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Writes both files, whole or not at all: an older checkpoint in the folder stays until the last moment."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        content = save({**self.network.weights, "golden": np.ascontiguousarray(self.golden_vectors)})
        digest = hashlib.sha256(content).hexdigest()
        values = {
            "kind": "amc-goal",
            "version": VERSION,
            "weights": f"goal-{digest[:16]}.safetensors",
            "weights_hash": digest,
            "embeddings": self.embeddings,
            "dimensions": self.dimensions,
            "scale": self.network.scale,
            "nearness": self.network.nearness,
            "summary": self.summary,
            "prompt": self.prompt,
            "tolerance": self.tolerance,
            "calibration": self.calibration.to_json() if self.calibration else None,
            "data_hash": self.data_hash,
            "settings": self.settings,
            "metrics": self.metrics,
            "golden": [[one.state, one.thought, one.goal, one.q] for one in self.golden],
        }
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
        path = folder / FILE
        replace_file(folder / str(values["weights"]), content)
        replace_file(path, f"{{\n{lines}\n}}\n")
        for old in folder.glob("goal-*.safetensors"):
            if old.name != values["weights"]:
                old.unlink()
        return path

    @classmethod
    def load(cls, folder: str | Path) -> GoalCheckpoint:
        """Reads a folder, and checks that the weights are those that were saved.

        Raises:
            CheckpointError: a file is missing, damaged, or of another version.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: expected a folder written by `amc train goal`")
        values = read_saved(path, _Saved, "a goal checkpoint", kind="amc-goal", versions=(VERSION,))
        try:
            content = (path.parent / values["weights"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != values["weights_hash"]:
                raise CheckpointError(f"{path.parent / values['weights']} is damaged, or not the file that was saved")
            weights = load(content)
            found = cls(
                golden_vectors=weights.pop("golden"),
                network=GoalNetwork(weights, values["scale"], values["nearness"]),
                dimensions=values["dimensions"],
                embeddings=values["embeddings"],
                summary=values["summary"],
                prompt=values["prompt"],
                tolerance=values["tolerance"],
                calibration=Calibration.from_json(values["calibration"]) if values["calibration"] else None,
                data_hash=values["data_hash"],
                settings=values["settings"],
                metrics=values["metrics"],
                golden=tuple(GoldenTriple(*one) for one in values["golden"]),
            )
            found.check(found.golden_vectors, str(path.parent), tolerance=1e-4)
        except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
            said = excerpt(f"{type(error).__name__}: {error}")
            raise CheckpointError(f"{path.parent} is not a goal checkpoint: {said}") from error
        return found

    def check(self, vectors: Vectors, where: str, *, tolerance: float | None = None) -> None:
        """Compares embeddings of the golden texts, and the scores made of them, with those of training.

        Args:
            vectors: `[golden, 3, D]` embeddings of each triple's state, thought and goal.
            where: what is being checked, for the message.
            tolerance: None: the checkpoint's.

        Raises:
            CheckpointError: they differ; the message says which embedding model is expected.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        if vectors.shape != self.golden_vectors.shape:
            raise CheckpointError(
                f"{where}: embeddings have {vectors.shape[-1]} dimensions, expected {self.dimensions}: this critic was "
                f"trained on {self.embeddings}"
            )
        nearness = _cosines(vectors, self.golden_vectors)
        if nearness.min() < _SAME:
            raise CheckpointError(
                f"{where}: the embedding model has changed: golden texts have a cosine of {nearness.min():.4f} with "
                f"their embeddings of training, expected at least {_SAME}. Use {self.embeddings} as it was (the same "
                "model, prefix, pooling and normalisation), or train the critic again"
            )
        expected = np.array([one.q for one in self.golden])
        actual = self.network.q(vectors[:, 0], vectors[:, 1], vectors[:, 2])
        if not np.all(np.abs(actual - expected) <= tolerance):
            raise CheckpointError(
                f"{where}: golden scores differ: expected {quoted(np.round(expected, 4).tolist(), 32)}, got "
                f"{quoted(np.round(actual, 4).tolist(), 32)} (tolerance {tolerance}). Likely cause: other weights, or "
                f"embeddings of another length or precision than those of {self.embeddings} in training"
            )


class _Saved(SavedFields):
    """`amc_goal.json`."""

    weights: Annotated[str, Field(pattern=r"^goal-[0-9a-f]{1,64}\.safetensors$")]
    weights_hash: str
    embeddings: str
    dimensions: TokenCount
    scale: Number
    nearness: bool
    summary: str
    prompt: str | None
    tolerance: Annotated[Number, Field(ge=0)]
    calibration: dict[str, list[Number]] | None
    data_hash: str
    settings: dict[str, Any]
    metrics: dict[str, Any]
    golden: list[Annotated[tuple[str, str, str, Number], Strict(False)]]


def _cosines(one: Vectors, other: Vectors) -> FloatArray:
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    # Two texts without any content are alike.
    both_empty = (np.linalg.norm(one, axis=-1) == 0) & (np.linalg.norm(other, axis=-1) == 0)
    found: FloatArray = np.where(both_empty, 1.0, np.sum(one * other, axis=-1) / np.where(lengths > 0, lengths, 1.0))
    return found


_SAME = 0.98
"""Least cosine of two embeddings of one text by one model, at different precision."""
