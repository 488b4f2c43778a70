"""The checkpoint of a value model, stored next to its weights: prompt format, scale, and golden scores.

A wrong template, tokenizer, activation, pooling or truncation side still gives numbers. To catch such a mistake, every
server of the model is compared with golden scores from the training process.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from amc_agents.critics.calibration import ValueCalibration, calibration_from_json
from amc_agents.critics.render import Encoder, PromptFormat
from amc_agents.critics.saved import (
    Golden,
    Number,
    SavedFields,
    TokenCount,
    TokenId,
    allowed_deviation,
    in_lines,
    likely_cause,
    misfit,
    probes,
    read_saved,
)
from amc_agents.errors import CheckpointError
from amc_agents.models.tokenizers import Tokenize, segments_from_json, segments_to_json
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import FloatArray

FILE = "amc_value.json"
"""Name of the file in a checkpoint folder."""
VERSION = 2
"""Version of a file with a link or a calibration, which older versions of the library would ignore. A file without
either has version 1, which they read."""
Link = Literal["identity", "sigmoid"]


@dataclass(frozen=True)
class ValueCheckpoint:
    """The JSON file next to a value model's weights."""

    prompt_format: PromptFormat
    max_tokens: int | None
    """Maximum number of tokens in a prompt; older rounds are dropped beyond it."""
    prefix_ids: tuple[int, ...]
    """Ids before the first segment (beginning of text)."""
    golden: tuple[Golden, ...]
    tolerance: float = 1e-4
    """Maximum deviation of a score from its golden score, if `allowed_deviation` is not larger."""
    scale: float = 1.0
    """A value in the world's reward units is calibration(scale x link(score))."""
    link: Link = "identity"
    """"sigmoid": the score is the logit of a 0/1 return (binary cross-entropy)."""
    calibration: ValueCalibration | None = None
    """Fitted on held-out tasks after training; None: no calibration."""
    target: str = "future"
    """The predicted quantity: "future", the return still to come (eq. 7), or "return", the whole return."""
    beta: float | None = None
    """The beta of an eq. 5 model, whose values hold for that beta alone; None for other models."""
    probe_scores: tuple[float, ...] = ()
    """`[2]` expected scores of the two probes (`golden.probes`); empty in older files, which have no probes."""
    base_model_hash: str = ""
    """`weights_hash` of the base model's folder."""
    data_hash: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse settings that would give wrong values."""
        if self.link not in ("identity", "sigmoid"):
            raise CheckpointError(f"a value model's link is 'identity' or 'sigmoid', got {quoted(self.link)}")
        if self.target not in ("future", "return"):
            raise CheckpointError(f"a value model's target is 'future' or 'return', got {quoted(self.target)}")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise CheckpointError(f"a value model's scale is a positive number, got {self.scale}")
        if self.beta is not None and not (self.beta > 0 and math.isfinite(self.beta)):
            raise CheckpointError(f"the beta of an eq. 5 model is a positive number, got {self.beta}")

    def values(self, scores: FloatArray) -> FloatArray:
        """Convert `[n]` raw scores to values in the world's reward units."""
        raw = self.uncalibrated(scores)
        return raw if self.calibration is None else self.calibration(raw)

    def uncalibrated(self, scores: FloatArray) -> FloatArray:
        """`[n]` scale x link(score), the input of the calibration."""
        raw = np.asarray(scores, dtype=np.float64)
        # The sigmoid by tanh, because exp of a large score would overflow.
        linked: FloatArray = raw if self.link == "identity" else 0.5 * (1.0 + np.tanh(0.5 * raw))
        return self.scale * linked

    def conversion(self) -> dict[str, Any]:
        """Scale, link and calibration as plain values, without those that have their default."""
        settings = {
            "scale": (self.scale, 1.0),
            "link": (self.link, "identity"),
            "calibration": (None if self.calibration is None else self.calibration.to_json(), None),
        }
        return {name: value for name, (value, default) in settings.items() if value != default}

    def encoder(self, tokenize: Tokenize) -> Encoder:
        """An encoder that renders trajectories exactly as in training."""
        return Encoder(self.prompt_format, tokenize, self.max_tokens, self.prefix_ids)

    def save(self, folder: str | Path) -> Path:
        """Write `amc_value.json` into a folder."""
        values = {
            "kind": "amc-value",
            "version": 1 if self.link == "identity" and self.calibration is None else VERSION,
            "format": self.prompt_format.to_json(),
            "max_tokens": self.max_tokens,
            "prefix_ids": list(self.prefix_ids),
            "target": self.target,
            "scale": self.scale,
            "link": self.link,
            "calibration": None if self.calibration is None else self.calibration.to_json(),
            "beta": self.beta,
            "tolerance": self.tolerance,
            "base_model_hash": self.base_model_hash,
            "data_hash": self.data_hash,
            "settings": self.settings,
            "metrics": self.metrics,
            "golden": [
                {
                    "segments": segments_to_json(golden.segments),
                    "token_ids": list(golden.token_ids),
                    "score": golden.score,
                    "faults": dict(golden.faults),
                }
                for golden in self.golden
            ],
            "probe_scores": list(self.probe_scores),
        }
        path = Path(folder) / FILE
        path.write_text(in_lines(values))
        return path

    @classmethod
    def load(cls, folder: str | Path) -> ValueCheckpoint:
        """Read a folder's `amc_value.json`. Raises `CheckpointError` if it is missing or invalid."""
        path = Path(folder) / FILE
        if not path.is_file():
            raise CheckpointError(f"{path} does not exist: expected a folder written by `amc train value`")
        values = read_saved(path, _Saved, "a value checkpoint", kind="amc-value", versions=(1, VERSION))
        try:
            return cls._from_json(values)
        except (CheckpointError, TypeError, ValueError) as error:  # from the format or the calibration
            raise CheckpointError(f"{path}: {excerpt(str(error), 300)}") from error

    @classmethod
    def _from_json(cls, values: dict[str, Any]) -> ValueCheckpoint:
        calibration = values["calibration"]
        return cls(
            prompt_format=PromptFormat.from_json(values["format"]),
            max_tokens=values["max_tokens"],
            prefix_ids=tuple(values["prefix_ids"]),
            golden=tuple(
                Golden(
                    segments_from_json(saved["segments"]), tuple(saved["token_ids"]), saved["score"], saved["faults"]
                )
                for saved in values["golden"]
            ),
            tolerance=values["tolerance"],
            scale=values["scale"],
            link=values["link"],
            calibration=None if calibration is None else calibration_from_json(calibration),
            target=values["target"],
            beta=values["beta"],
            probe_scores=tuple(values["probe_scores"]),
            base_model_hash=values["base_model_hash"],
            data_hash=values["data_hash"],
            settings=values["settings"],
            metrics=values["metrics"],
        )

    def check_prompts(self, tokenize: Tokenize, where: str) -> None:
        """Check that prompt format and tokenizer reproduce the golden prompts.

        Args:
            tokenize: the tokenizer in use.
            where: the critic's name, for the message.

        Raises:
            CheckpointError: the format or the tokenizer differs.
        """
        for golden in self.golden:
            if part := misfit(self.prompt_format, golden):
                raise CheckpointError(
                    f"{where}: the prompt format {quoted(self.prompt_format.name)} did not write the golden prompts "
                    f"(its {part} does not fit). Likely cause: another template than in training; restore `format` in "
                    f"{FILE}"
                )
            ids = self.prefix_ids + tuple(token for text in golden.segments for token in tokenize(text))
            if ids != golden.token_ids:
                raise CheckpointError(
                    f"{where}: the token ids of a golden prompt differ from training (first difference at token "
                    f"{_first_difference(ids, golden.token_ids)}). Likely cause: another tokenizer than in training"
                )

    def handshake_rows(self) -> list[tuple[int, ...]]:
        """Token ids of the prompts to score at the first use, in one request: golden prompts, then probes."""
        rows = [golden.token_ids for golden in self.golden]
        return [*rows, *probes(self.golden, self.prefix_ids)] if self.probe_scores else rows

    @property
    def allowed(self) -> float:
        """How far a score may be off, unless a critic sets another tolerance."""
        return allowed_deviation([golden.score for golden in self.golden], self.tolerance)

    def check_scores(self, scores: FloatArray, where: str, tolerance: float | None = None) -> None:
        """Compare the scores of `handshake_rows` with the expected scores.

        Args:
            scores: `[rows]` raw scores, in the order of the rows.
            where: the critic's name, for the message.
            tolerance: how far scores may be off; None: `allowed`.

        Raises:
            CheckpointError: a score differs; the message names the likely cause.
        """
        tolerance = self.allowed if tolerance is None else tolerance
        expected = np.array([*(golden.score for golden in self.golden), *self.probe_scores])
        actual = np.asarray(scores, dtype=np.float64)
        if actual.shape != expected.shape:
            raise CheckpointError(
                f"{where}: scores of shape {actual.shape} for {len(expected)} prompts. Likely cause: a model with "
                "several labels; a value model has num_labels=1"
            )
        if not np.all(np.abs(actual - expected) <= tolerance):
            raise CheckpointError(
                f"{where}: golden scores differ: expected {quoted(np.round(expected, 4).tolist(), 32)}, got "
                f"{quoted(np.round(actual, 4).tolist(), 32)} (tolerance {tolerance}). "
                f"Likely cause: {likely_cause(self.golden, expected, actual, tolerance)}"
            )


class CheckpointedCritic:
    """What a critic of value says of itself, from its checkpoint."""

    @property
    @abstractmethod
    def checkpoint(self) -> ValueCheckpoint:
        """The model's prompt format, scale and golden scores. Raises `CriticError` before they are known."""

    @property
    def predicts(self) -> str:
        """The predicted quantity: "future", the return still to come, or "return", the whole return."""
        return self.checkpoint.target

    @property
    def beta(self) -> float | None:
        """The beta of an eq. 5 model, whose values hold for that beta alone; None for other models."""
        return self.checkpoint.beta


class _SavedGolden(SavedFields):
    segments: list[str | list[str]]
    token_ids: list[TokenId]
    score: Number
    faults: dict[str, float] = Field(default_factory=dict)


class _Saved(SavedFields):
    """Fields of `amc_value.json`. Files of version 1 have no link and no calibration; the oldest lack more fields."""

    format: dict[str, Any]
    max_tokens: TokenCount | None
    prefix_ids: list[TokenId]
    golden: list[_SavedGolden]
    tolerance: Annotated[Number, Field(ge=0)]
    scale: Number
    link: Link = "identity"
    calibration: dict[str, Any] | None = None
    target: str
    beta: Number | None = None
    probe_scores: list[Number] = Field(default_factory=list)
    base_model_hash: str
    data_hash: str
    settings: dict[str, Any]
    metrics: dict[str, Any]


def weights_hash(folder: str | Path) -> str:
    """SHA-256 of the contents of a model folder's safetensors files, sorted by name."""
    digest = hashlib.sha256()
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} holds no *.safetensors: expected a model's folder")
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def _first_difference(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
