"""What a saved value model carries beside its weights: how to write prompts, and proof that it is served right.

A wrong template, tokenizer, activation, pooling or truncation side still gives numbers. The golden scores, made
where the model was trained, are compared wherever it is loaded: that is how such a mistake is caught.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.render import Encoder, PromptFormat, Tokenize
from amc_agents.errors import CheckpointError
from amc_agents.types import FloatArray

FILE = "amc_value.json"
"""Name of the file in a checkpoint's folder."""
VERSION = 1


@dataclass(frozen=True)
class Golden:
    """One prompt and the score that the trained model gave it."""

    segments: tuple[str, ...]
    """The prompt's texts, each tokenized on its own."""
    token_ids: tuple[int, ...]
    score: float
    """The raw score, before `scale`."""


@dataclass(frozen=True)
class ValueCheckpoint:
    """The JSON beside a value model's weights."""

    prompt_format: PromptFormat
    max_tokens: int | None
    """The most tokens of a prompt; older rounds are dropped beyond it."""
    prefix_ids: tuple[int, ...]
    """Ids put before the first segment (beginning of text)."""
    golden: tuple[Golden, ...]
    tolerance: float = 1e-4
    """How far a score may be from its golden one."""
    scale: float = 1.0
    """Value in the world's reward units = scale x score."""
    target: str = "future"
    """What it predicts: "future", the return still to come (eq. 7), or "return", the whole return."""
    base_model_hash: str = ""
    """`weights_hash` of the folder that the adapter was trained on."""
    data_hash: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def encoder(self, tokenize: Tokenize) -> Encoder:
        """Renders trajectories exactly as in training."""
        return Encoder(self.prompt_format, tokenize, self.max_tokens, self.prefix_ids)

    def save(self, folder: str | Path) -> Path:
        """Writes `amc_value.json` into a folder."""
        values = {
            "kind": "amc-value",
            "version": VERSION,
            "format": self.prompt_format.to_json(),
            "max_tokens": self.max_tokens,
            "prefix_ids": list(self.prefix_ids),
            "target": self.target,
            "scale": self.scale,
            "tolerance": self.tolerance,
            "base_model_hash": self.base_model_hash,
            "data_hash": self.data_hash,
            "settings": self.settings,
            "metrics": self.metrics,
            "golden": [
                {"segments": list(one.segments), "token_ids": list(one.token_ids), "score": one.score}
                for one in self.golden
            ],
        }
        path = Path(folder) / FILE
        # One line per entry: readable, and no line per token id.
        lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
        path.write_text(f"{{\n{lines}\n}}\n")
        return path

    @classmethod
    def load(cls, folder: str | Path) -> ValueCheckpoint:
        """Reads a folder's `amc_value.json`. Raises `CheckpointError` where it is missing or not understood."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: expected a folder written by `amc train value`")
        try:
            values = json.loads(path.read_text())
            if values["kind"] != "amc-value" or values["version"] != VERSION:
                raise CheckpointError(
                    f"{path}: kind {values['kind']!r} version {values['version']}, expected 'amc-value' "
                    f"version {VERSION}: train the critic again, or use the library's version that made it"
                )
            return cls(
                prompt_format=PromptFormat.from_json(values["format"]),
                max_tokens=values["max_tokens"],
                prefix_ids=tuple(values["prefix_ids"]),
                golden=tuple(
                    Golden(tuple(one["segments"]), tuple(one["token_ids"]), float(one["score"]))
                    for one in values["golden"]
                ),
                tolerance=values["tolerance"],
                scale=values["scale"],
                target=values["target"],
                base_model_hash=values["base_model_hash"],
                data_hash=values["data_hash"],
                settings=values["settings"],
                metrics=values["metrics"],
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{path} is not a value checkpoint: {error!r}") from error

    def check(self, tokenize: Tokenize, score: Callable[[Sequence[Sequence[int]]], FloatArray], where: str) -> None:
        """Compares tokenizer and scores with the golden ones.

        Args:
            tokenize: the tokenizer in use.
            score: rows of token ids -> `[rows]` raw scores.
            where: what is being checked, for the message.

        Raises:
            CheckpointError: they differ; the message names the likely cause.
        """
        for one in self.golden:
            ids = self.prefix_ids + tuple(token for text in one.segments for token in tokenize(text))
            if ids != one.token_ids:
                raise CheckpointError(
                    f"{where}: a golden prompt gives other token ids than in training (first difference at token "
                    f"{_first_difference(ids, one.token_ids)}). Likely cause: another tokenizer than the checkpoint's"
                )
        expected = np.array([one.score for one in self.golden])
        actual = np.asarray(score([one.token_ids for one in self.golden]), dtype=np.float64)
        if actual.shape == expected.shape and np.all(np.abs(actual - expected) <= self.tolerance):
            return
        raise CheckpointError(
            f"{where}: golden scores differ: expected {np.round(expected, 5).tolist()}, got "
            f"{np.round(actual, 5).tolist()} (tolerance {self.tolerance}). "
            f"Likely cause: {_cause(expected, actual, self.tolerance)}"
        )


def weights_hash(folder: str | Path) -> str:
    """SHA-256 of a model folder's safetensors files (file names excluded, in their order)."""
    digest = hashlib.sha256()
    found = sorted(Path(folder).glob("*.safetensors"))
    if not found:
        raise CheckpointError(f"{folder} holds no *.safetensors: expected a model's folder")
    for path in found:
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _cause(expected: FloatArray, actual: FloatArray, tolerance: float) -> str:
    if actual.shape != expected.shape:
        return f"{actual.shape} scores for {expected.shape} prompts; the model must have num_labels=1"
    if not np.all(np.isfinite(actual)):
        return "scores are not finite; the number type may be too small (use float32 or bfloat16)"
    if np.all(np.abs(actual - 1 / (1 + np.exp(-expected))) <= tolerance):
        return "a sigmoid was applied (a server needs use_activation=false)"
    if np.all(np.abs(actual - expected) <= 100 * tolerance):
        return "a number type with less precision than the checkpoint's, or an adapter merged in it"
    return "other weights (base model or adapter), or pooling of another token than the last"
