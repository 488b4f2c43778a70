"""What a saved value model carries beside its weights: how to write prompts, and proof that it is served right.

A wrong template, tokenizer, activation, pooling or truncation side still gives numbers. The golden scores, made
where the model was trained, are compared wherever it is loaded: that is how such a mistake is caught.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from amc_agents.critics.render import Encoder, PromptFormat
from amc_agents.critics.saved import Number, SavedFields, TokenCount, TokenId, read_saved
from amc_agents.critics.server.golden import Golden, likely_cause, misfit, probes
from amc_agents.critics.template import segments_from_json, segments_to_json
from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.value.value_calibration import ValueCalibration, calibration_from_json
from amc_agents.errors import CheckpointError
from amc_agents.quoting import excerpt, quoted
from amc_agents.types import FloatArray

FILE = "amc_value.json"
"""Name of the file in a checkpoint's folder."""
VERSION = 2
"""Of a file with a link or a calibration, which the library's older versions would pass over in silence; a file
without either is of version 1, which they read."""
Link = Literal["identity", "sigmoid"]


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
    """A value in the world's reward units is calibration(scale x link(score))."""
    link: Link = "identity"
    """"sigmoid": the score is the logit of a 0/1 return (binary cross-entropy)."""
    calibration: ValueCalibration | None = None
    """Fitted on held-out tasks after training; None: values are taken as they are."""
    target: str = "future"
    """What it predicts: "future", the return still to come (eq. 7), or "return", the whole return."""
    beta: float | None = None
    """The beta of an eq. 5 model, whose values hold for that beta alone; None for the other kinds."""
    probe_scores: tuple[float, ...] = ()
    """`[2]` right scores of the two probes (`golden.probes`); empty in older files: no probes are then sent."""
    base_model_hash: str = ""
    """`weights_hash` of the folder that the adapter was trained on."""
    data_hash: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would give wrong values later."""
        if self.link not in ("identity", "sigmoid"):
            raise CheckpointError(f"a value model's link is 'identity' or 'sigmoid', got {self.link!r}")
        if self.target not in ("future", "return"):
            raise CheckpointError(f"a value model's target is 'future' or 'return', got {self.target!r}")
        if not (self.scale > 0 and math.isfinite(self.scale)):
            raise CheckpointError(f"a value model's scale is a positive number, got {self.scale}")
        if self.beta is not None and not (self.beta > 0 and math.isfinite(self.beta)):
            raise CheckpointError(f"the beta of an eq. 5 model is a positive number, got {self.beta}")

    def values(self, scores: FloatArray) -> FloatArray:
        """`[n]` values in the world's reward units of `[n]` raw scores: what a run weighs by."""
        raw = self.uncalibrated(scores)
        return raw if self.calibration is None else self.calibration(raw)

    def uncalibrated(self, scores: FloatArray) -> FloatArray:
        """`[n]` scale x link(score): what a calibration is fitted on."""
        found = np.asarray(scores, dtype=np.float64)
        # Written by tanh, as exp of a large score would overflow.
        linked: FloatArray = found if self.link == "identity" else 0.5 * (1.0 + np.tanh(0.5 * found))
        return self.scale * linked

    def conversion(self) -> dict[str, Any]:
        """What makes values of raw scores, as plain values; only what is not left out of an ordinary checkpoint."""
        said = {
            "scale": (self.scale, 1.0),
            "link": (self.link, "identity"),
            "calibration": (None if self.calibration is None else self.calibration.to_json(), None),
        }
        return {name: value for name, (value, usual) in said.items() if value != usual}

    def encoder(self, tokenize: Tokenize) -> Encoder:
        """Renders trajectories exactly as in training."""
        return Encoder(self.prompt_format, tokenize, self.max_tokens, self.prefix_ids)

    def save(self, folder: str | Path) -> Path:
        """Writes `amc_value.json` into a folder."""
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
                    "segments": segments_to_json(one.segments),
                    "token_ids": list(one.token_ids),
                    "score": one.score,
                    "faults": dict(one.faults),
                }
                for one in self.golden
            ],
            "probe_scores": list(self.probe_scores),
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
        values = read_saved(path, _Saved, "a value checkpoint", kind="amc-value", versions=(1, VERSION))
        try:
            return cls._from_json(values)
        except (CheckpointError, TypeError, ValueError) as error:  # of the format or the calibration
            raise CheckpointError(f"{path}: {excerpt(str(error), 300)}") from error

    @classmethod
    def _from_json(cls, values: dict[str, Any]) -> ValueCheckpoint:
        calibration = values["calibration"]
        return cls(
            prompt_format=PromptFormat.from_json(values["format"]),
            max_tokens=values["max_tokens"],
            prefix_ids=tuple(values["prefix_ids"]),
            golden=tuple(
                Golden(segments_from_json(one["segments"]), tuple(one["token_ids"]), one["score"], one["faults"])
                for one in values["golden"]
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
        """Compares prompt format and tokenizer with those that wrote the golden prompts.

        Args:
            tokenize: the tokenizer in use.
            where: what is being checked, for the message.

        Raises:
            CheckpointError: they differ; the message names which.
        """
        for one in self.golden:
            if part := misfit(self.prompt_format, one):
                raise CheckpointError(
                    f"{where}: the prompt format {self.prompt_format.name!r} did not write the golden prompts (its "
                    f"{part} does not fit). Likely cause: another template than in training; restore `format` in {FILE}"
                )
            ids = self.prefix_ids + tuple(token for text in one.segments for token in tokenize(text))
            if ids != one.token_ids:
                raise CheckpointError(
                    f"{where}: a golden prompt gives other token ids than in training (first difference at token "
                    f"{_first_difference(ids, one.token_ids)}). Likely cause: another tokenizer than the checkpoint's"
                )

    def handshake_rows(self) -> list[tuple[int, ...]]:
        """Token ids of the prompts to score at the first use, in one request: the golden ones, then the probes."""
        rows = [one.token_ids for one in self.golden]
        return [*rows, *probes(self.golden, self.prefix_ids)] if self.probe_scores else rows

    def check_scores(self, scores: FloatArray, where: str, tolerance: float | None = None) -> None:
        """Compares the answers to `handshake_rows` with the right ones.

        Args:
            scores: `[rows]` raw scores, in the order of the rows.
            where: what answered, for the message.
            tolerance: how far they may be; None: the checkpoint's own `tolerance`.

        Raises:
            CheckpointError: they differ; the message names the likely cause.
        """
        tolerance = self.tolerance if tolerance is None else tolerance
        expected = np.array([*(one.score for one in self.golden), *self.probe_scores])
        actual = np.asarray(scores, dtype=np.float64)
        if actual.shape != expected.shape:
            raise CheckpointError(
                f"{where}: scores of shape {actual.shape} for {len(expected)} prompts. Likely cause: a model with "
                "more labels than one; a value model has num_labels=1"
            )
        if not np.all(np.abs(actual - expected) <= tolerance):
            raise CheckpointError(
                f"{where}: golden scores differ: expected {quoted(np.round(expected, 4).tolist(), 32)}, got "
                f"{quoted(np.round(actual, 4).tolist(), 32)} (tolerance {tolerance}). "
                f"Likely cause: {likely_cause(self.golden, expected, actual, tolerance)}"
            )


class _SavedGolden(SavedFields):
    segments: list[str | list[str]]
    token_ids: list[TokenId]
    score: Number
    faults: dict[str, float] = Field(default_factory=dict)


class _Saved(SavedFields):
    """`amc_value.json`. Files of the first version have neither link nor calibration; the oldest lack a few more."""

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
