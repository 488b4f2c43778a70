"""The checkpoint that `amc train goal` saves: two small networks and their embedding model.

    amc_goal.json               settings, metrics, golden texts and scores; names the file of the weights
    goal-<hash>.safetensors     weights, and the embeddings of the golden texts

The networks compute numbers from the vectors of any embedding model. To detect a wrong model, the golden texts are
embedded again at the first use and compared with their saved embeddings and scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field, Strict
from safetensors import SafetensorError
from safetensors.numpy import load, save

from amc_agents.critics.calibration import check_rising, rising_pools
from amc_agents.critics.goal.embeddings import Vectors
from amc_agents.critics.saved import Number, SavedFields, TokenCount, in_lines, read_saved
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import FloatArray

FILE = "amc_goal.json"
"""Name of the JSON in a checkpoint's folder."""
VERSION = 1


@dataclass(frozen=True)
class GoalNetwork:
    """Q(s, a, g) and V(s, g) over embeddings, in numpy. `n` rows, `D` dimensions.

    Each network consists of linear layers with ReLU between them.
    """

    weights: Mapping[str, Vectors]
    """`<name>.<i>.weight` `[out, in]` and `<name>.<i>.bias` `[out]` of the networks q and v, and of q2 with twin
    networks, whose minimum is used."""
    scale: float
    """Factor of the embeddings, which brings their coordinates to a size of about 1."""
    nearness: bool = True
    """True if the inner products with the goal are additional inputs."""

    def q(self, states: Vectors, thoughts: Vectors, goals: Vectors) -> FloatArray:
        """Return Q `[n]` of rows of embeddings `[n, D]`; near [0, 1], but not clipped to it."""
        inputs = self._features(states, thoughts, goals)
        q = self._run("q", inputs)
        return np.minimum(q, self._run("q2", inputs)) if "q2.0.weight" in self.weights else q

    def v(self, states: Vectors, goals: Vectors) -> FloatArray:
        """Return V `[n]` of rows of embeddings `[n, D]`."""
        return self._run("v", self._features(states, goals))

    def _features(self, *embeddings: Vectors) -> Vectors:
        """Return `[n, inputs]`: the embeddings (the goal's last), then the inner product of each with the goal."""
        inputs = [self.scale * embedding for embedding in embeddings]
        *others, goals = inputs
        if self.nearness:
            inputs += [np.sum(other * goals, axis=1, keepdims=True) / np.sqrt(goals.shape[1]) for other in others]
        return np.concatenate(inputs, axis=1).astype(np.float32)

    def _run(self, name: str, rows: Vectors) -> FloatArray:
        n_layers = sum(key.startswith(f"{name}.") and key.endswith(".weight") for key in self.weights)
        for layer in range(n_layers):
            rows = rows @ self.weights[f"{name}.{layer}.weight"].T + self.weights[f"{name}.{layer}.bias"]
            if layer + 1 < n_layers:
                rows = np.maximum(rows, 0.0)
        return rows[:, 0].astype(np.float64)


@dataclass(frozen=True)
class GoldenTriple:
    """A state, a thought and a goal with their Q in training."""

    state: str
    thought: str
    goal: str
    q: float


@dataclass(frozen=True)
class GoalCheckpoint:
    """A trained goal critic."""

    network: GoalNetwork
    dimensions: int
    """Dimensions of the embeddings (D)."""
    embeddings: str
    """The embedding model of training."""
    summary: str
    """Description of states: "none", a chat model, or the name of a function."""
    golden: tuple[GoldenTriple, ...]
    golden_vectors: Vectors
    """`[golden, 3, D]` embeddings of the golden texts in training."""
    tolerance: float = 0.02
    """Allowed difference of golden scores, which embeddings of lower precision cause."""
    prompt: str | None = None
    """Prompt of a chat model's summary."""
    calibration: Calibration | None = None
    """Maps Q to a probability; None: Q itself, clipped to [0, 1]."""
    data_hash: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: str | Path) -> Path:
        """Write both files atomically; an older checkpoint in the folder stays valid until the end."""
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
            "golden": [[triple.state, triple.thought, triple.goal, triple.q] for triple in self.golden],
        }
        path = folder / FILE
        replace_file(folder / str(values["weights"]), content)
        replace_file(path, in_lines(values))
        for old in folder.glob("goal-*.safetensors"):
            if old.name != values["weights"]:
                old.unlink()
        return path

    @classmethod
    def load(cls, folder: str | Path) -> GoalCheckpoint:
        """Read a folder and check its weights against their hash.

        Raises:
            CheckpointError: a file is missing, damaged, or of another version.
        """
        path = Path(folder) / FILE
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: expected a folder that `amc train goal` wrote")
        values = read_saved(path, _Saved, "a goal checkpoint", kind="amc-goal", versions=(VERSION,))
        try:
            content = (path.parent / values["weights"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != values["weights_hash"]:
                raise CheckpointError(
                    f"{path.parent / values['weights']} is damaged, or another file: copy the folder again"
                )
            weights = load(content)
            checkpoint = cls(
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
                golden=tuple(GoldenTriple(*triple) for triple in values["golden"]),
            )
            checkpoint.check(checkpoint.golden_vectors, str(path.parent), tolerance=1e-4)
        except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
            reason = excerpt(f"{type(error).__name__}: {error}")
            raise CheckpointError(f"{path.parent} is not a goal checkpoint, or is damaged: {reason}") from error
        return checkpoint

    def check(self, vectors: Vectors, where: str, *, tolerance: float | None = None) -> None:
        """Compare embeddings of the golden texts, and their scores, with those of training.

        Args:
            vectors: `[golden, 3, D]` embeddings of each triple's state, thought and goal.
            where: the critic or folder, for the message.
            tolerance: allowed difference of scores; None: the checkpoint's tolerance.

        Raises:
            CheckpointError: they differ; the message names the expected embedding model.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        if vectors.shape != self.golden_vectors.shape:
            raise CheckpointError(
                f"{where}: expected embeddings of {self.dimensions} dimensions, got {vectors.shape[-1]}: use "
                f"{self.embeddings}, as in training"
            )
        nearness = _cosines(vectors, self.golden_vectors)
        if nearness.min() < _SAME:
            raise CheckpointError(
                f"{where}: the embedding model has changed: golden texts have a cosine of {nearness.min():.4f} with "
                f"their embeddings in training, expected at least {_SAME}. Use {self.embeddings} with the same "
                "prefix, pooling and normalisation as in training, or train the critic again"
            )
        expected = np.array([triple.q for triple in self.golden])
        actual = self.network.q(vectors[:, 0], vectors[:, 1], vectors[:, 2])
        if not np.all(np.abs(actual - expected) <= tolerance):
            raise CheckpointError(
                f"{where}: golden scores differ: expected {quoted(np.round(expected, 4).tolist(), 32)}, got "
                f"{quoted(np.round(actual, 4).tolist(), 32)} (tolerance {tolerance}). Likely cause: other weights, or "
                f"embeddings of another length or precision than {self.embeddings} gave in training"
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


def _cosines(left: Vectors, right: Vectors) -> FloatArray:
    left_length, right_length = np.linalg.norm(left, axis=-1), np.linalg.norm(right, axis=-1)
    lengths = left_length * right_length
    # Two texts without any words count as equal.
    both_empty = (left_length == 0) & (right_length == 0)
    cosines = np.sum(left * right, axis=-1) / np.where(lengths > 0, lengths, 1.0)
    return np.asarray(np.where(both_empty, 1.0, cosines), dtype=np.float64)


_SAME = 0.98
"""Minimum cosine of two embeddings of the same text by the same model, at different precision."""


@dataclass(frozen=True)
class Calibration:
    """A monotone piecewise linear curve, constant beyond its first and last point."""

    q: tuple[float, ...]
    """`[n]` values of Q, ascending."""
    probability: tuple[float, ...]
    """`[n]` frequency with which the goal was reached, non-decreasing."""

    def __post_init__(self) -> None:
        """Check that the curve is monotone and within [0, 1]. Raises `CheckpointError`."""
        check_rising(self.q, self.probability, ("values of Q", "probabilities"))
        if self.probability[0] < 0 or self.probability[-1] > 1:
            raise CheckpointError(
                f"a calibration's probabilities must be within [0, 1], got {self.probability[0]} to "
                f"{self.probability[-1]}: train the critic again"
            )

    def __call__(self, q: FloatArray) -> FloatArray:
        """Return `[n]` probabilities of `[n]` values of Q."""
        probability: FloatArray = np.interp(q, self.q, self.probability)
        return probability

    def to_json(self) -> dict[str, Any]:
        """Return the curve as JSON values."""
        return {"q": list(self.q), "probability": list(self.probability)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Calibration:
        """Read the result of `to_json`."""
        return cls(tuple(values["q"]), tuple(values["probability"]))


def fit_calibration(q: Sequence[float] | FloatArray, reached: Sequence[bool] | npt.NDArray[Any]) -> Calibration:
    """Fit a calibration by isotonic regression (pool adjacent violators).

    The triples must be held out, and their goals must be chosen independently of the trajectory's future: goals chosen
    in hindsight are all reached, and a critic calibrated on them predicts success for every goal.

    Args:
        q: `[n]` the critic's uncalibrated Q of each triple.
        reached: `[n]` whether the trajectory later reached the goal.

    Raises:
        ConfigurationError: lengths differ, a number is not finite, or all triples have the same label.

    >>> fit_calibration([0.1, 0.2, 0.3, 0.4], [False, True, False, True])
    Calibration(q=(0.1, 0.25, 0.4), probability=(0.0, 0.5, 1.0))
    """
    values, labels = np.asarray(q, dtype=np.float64), np.asarray(reached, dtype=np.float64)
    if values.ndim != 1 or values.shape != labels.shape:
        raise ConfigurationError(f"expected [n] values of Q and [n] labels, got {values.shape} and {labels.shape}")
    if not np.all(np.isfinite(values)) or not np.all((labels == 0) | (labels == 1)):
        raise ConfigurationError("expected finite values of Q and boolean labels (reached or not)")
    if not 0 < labels.sum() < len(labels):
        raise ConfigurationError(
            f"{int(labels.sum())} of {len(labels)} goals were reached: both outcomes are needed. Take goals from the "
            "proposer, or at random; goals chosen from a trajectory's own future are reached by construction"
        )
    pools = rising_pools(values, labels)
    return Calibration(tuple(pool.centre for pool in pools), tuple(pool.height for pool in pools))
