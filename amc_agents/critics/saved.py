"""Saved critics: strict reading of their JSON file, and the golden prompts that reveal a wrong model.

A misconfigured server still answers with numbers. The expected scores of golden prompts reveal a fault. The scores that
typical faults would give, and two lengthened prompts, the probes, reveal its cause.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from amc_agents.critics.render import PromptFormat
from amc_agents.errors import CheckpointError
from amc_agents.files import read_json_object
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray

TokenCount = Annotated[int, Field(gt=0, lt=1 << 31)]
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class SavedFields(BaseModel):
    """Fields of a file, of exactly these types. Other fields are ignored."""

    model_config = ConfigDict(strict=True)


def read_saved(
    path: Path, schema: type[SavedFields], what: str, *, kind: str, versions: Collection[int]
) -> dict[str, Any]:
    """Read and check the fields of a file that the library wrote.

    Args:
        path: the file.
        schema: the types of its fields.
        what: what the file should be, for messages, such as "a value checkpoint".
        kind: the expected value of the field `kind`.
        versions: the values of the field `version` that this library reads.

    Raises:
        CheckpointError: the file cannot be read or parsed, its kind or version differs, or a field has the wrong type.
    """
    content = read_json_object(path, remedy=f"expected {what}; save it again")
    if "kind" not in content or "version" not in content:
        raise CheckpointError(
            f"{path} is not {what}: expected the fields `kind` and `version`, got {quoted(content, 200)}"
        )
    if content["kind"] != kind or content["version"] not in versions:
        raise CheckpointError(
            f"{path}: kind {quoted(content['kind'], 40)} version {quoted(content['version'], 40)}, expected "
            f"{quoted(kind)} version {' or '.join(map(str, versions))}: train the critic again, or use the library "
            "version that wrote it"
        )
    try:
        return schema.model_validate(content).model_dump()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field, value = ".".join(map(str, first["loc"])), quoted(first["input"])
        raise CheckpointError(f"{path} is not {what}: {field}: {first['msg']}, got {value}") from None


def in_lines(values: Mapping[str, Any]) -> str:
    """Write an object as JSON with a line per field, which is readable, unlike a line per token id."""
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    return f"{{\n{lines}\n}}\n"


MEAN_POOLING = "mean pooling"
FIRST_TOKEN_POOLING = "first-token pooling"
WITHOUT_ADAPTER = "without the adapter"
BFLOAT16 = "bfloat16"
PROBE_TOKENS = 16
"""Number of tokens that a probe adds to the longest golden prompt."""


@dataclass(frozen=True)
class Golden:
    """A prompt and the score that the trained model gave it."""

    segments: tuple[str, ...]
    """The prompt's texts, each tokenized on its own; a `Segment` if its plain text has other token ids."""
    token_ids: tuple[int, ...]
    score: float
    """The raw score, before `scale`."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """Scores of the same model with a fault: name of the fault -> score. Empty in older files."""


def longest(golden: Sequence[Golden]) -> int:
    """Index of the longest golden prompt, which the probes lengthen."""
    return max(range(len(golden)), key=lambda index: len(golden[index].token_ids))


def allowed_deviation(scores: Sequence[float], tolerance: float) -> float:
    """Return how far golden scores may be off: what a GPU's rounding of float32 (TF32) costs, or the tolerance.

    TF32 costs up to .0004 of the spread of the scores, and the smallest fault of a server .1.
    """
    return max(tolerance, ROUNDING * float(np.ptp(scores))) if scores else tolerance


def probes(golden: Sequence[Golden], prefix_ids: Sequence[int] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two probes: the longest golden prompt with its first `PROBE_TOKENS` tokens appended, and with its last prepended.

    A server that truncates prompts on the right does not read the appended tokens, and a server that truncates on the
    left does not read the prepended tokens. So that probe gets the same score as the golden prompt.
    """
    whole = golden[longest(golden)].token_ids
    prefix, text = whole[: len(prefix_ids)], whole[len(prefix_ids) :]
    return whole + text[:PROBE_TOKENS], prefix + text[-PROBE_TOKENS:] + text


def misfit(prompt_format: PromptFormat, golden: Golden) -> str | None:
    """The part of a prompt format that does not fit a golden prompt: "opening", "round", or None."""
    first, *rounds = golden.segments
    if not prompt_format.opening_template.wrote(first, prompt_format.marker):
        return "opening"
    if not all(prompt_format.round_template.wrote(text, prompt_format.marker) for text in rounds):
        return "round"
    return None


def likely_cause(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str:
    """Name the fault that explains wrong answers best.

    Args:
        golden: the prompts, with the scores that typical faults would give.
        expected: `[rows]` expected scores of the golden prompts, then of the probes if the checkpoint has them.
        actual: `[rows]` the server's scores, at least one of them wrong.
        tolerance: how far a correct score may be off.
    """
    if not np.all(np.isfinite(actual)):
        return f"the scores are not finite: the number type is too small (use float32 or bfloat16), or {_NO_HEAD}"
    if np.abs(actual).max() > _ABSURD * max(1.0, np.abs(expected).max()):
        return _NO_HEAD
    return (
        _known_fault(golden, expected, actual, tolerance)
        or _cut_side(golden, expected, actual, tolerance)
        or _cut_somewhere(golden, expected, actual, tolerance)
        or _precision(golden, expected, actual, tolerance)
        or (_CONSTANT if np.ptp(actual) <= tolerance else _OTHER_WEIGHTS)
    )


def _known_fault(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str | None:
    """The fault whose scores reduce the largest error to less than a tenth."""
    correct, answers = expected[: len(golden)], actual[: len(golden)]
    explanations = {_SIGMOID: 1 / (1 + np.exp(-correct)), _SOFTMAX: np.ones_like(correct)}
    for name, explanation in _STORED_FAULTS.items():
        if all(name in prompt.faults for prompt in golden):
            explanations[explanation] = np.array([prompt.faults[name] for prompt in golden])
    distances = {explanation: _distance(answers, scores) for explanation, scores in explanations.items()}
    best = min(distances, key=distances.__getitem__)
    if distances[best] <= max(tolerance, 0.1 * _distance(answers, correct)):
        return best
    return None


def _cut_side(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str | None:
    """Truncation on a known side: the longest prompt and a probe get equal scores that should differ (see `probes`)."""
    whole, at_end, at_front = longest(golden), len(golden), len(golden) + 1
    if len(actual) <= at_front:
        return None

    def confused(probe: int) -> bool:
        return bool(abs(actual[probe] - actual[whole]) <= tolerance < abs(expected[probe] - expected[whole]))

    if confused(at_end) == confused(at_front):
        return None
    side = "right, which loses the newest state" if confused(at_end) else "left, which loses the task"
    return f"prompts are truncated on the {side} ({_where_cut(golden, expected, actual, tolerance)}). {_NO_TRUNCATION}"


def _precision(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str | None:
    """Rounding in a number type with less precision."""
    distance = _distance(actual, expected)
    rounded = [abs(prompt.faults[BFLOAT16] - prompt.score) for prompt in golden if BFLOAT16 in prompt.faults]
    if distance > (_LIKE_BFLOAT16 * max(rounded) if rounded else _NEAR * tolerance):
        return None
    return (
        "a number type with less precision than the checkpoint's (bfloat16, float16, or float32 with TF32 products on "
        "a GPU, which NVIDIA_TF32_OVERRIDE=0 turns off), or an adapter merged in it. "
        f"Serve the model in the checkpoint's type, or accept the loss by tolerance={_rounded_up(2 * distance)}"
    )


def _cut_somewhere(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str | None:
    """Truncation on an unknown side: all prompts up to some length are right, and all longer prompts are wrong."""
    lengths, errors = _lengths(golden, len(actual)), np.abs(actual - expected)
    wrong = errors > tolerance
    if wrong.all() or lengths[~wrong].max() >= lengths[wrong].min():
        return None
    # Rounding changes all scores, even if some errors stay below the tolerance.
    if errors[~wrong].max() > 0.01 * errors[wrong].max():
        return None
    return f"prompts are truncated ({_where_cut(golden, expected, actual, tolerance)}). {_NO_TRUNCATION}"


def _where_cut(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str:
    lengths = _lengths(golden, len(actual))
    wrong = np.abs(actual - expected) > tolerance
    kept = f"those of {lengths[~wrong].max()} are not" if not wrong.all() else "and so are all others"
    return f"prompts of {lengths[wrong].min()} tokens are wrong, {kept}"


def _lengths(golden: Sequence[Golden], rows: int) -> FloatArray:
    lengths = [len(prompt.token_ids) for prompt in golden]
    return np.array((lengths + [max(lengths) + PROBE_TOKENS] * 2)[:rows])


def _distance(a: FloatArray, b: FloatArray) -> float:
    return float(np.max(np.abs(a - b)))


def _rounded_up(number: float) -> float:
    """Round up to one significant digit."""
    digit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / digit) * digit:.0e}")


ROUNDING = 0.005
"""Share of the spread of the golden scores that a right score may be off."""
_LIKE_BFLOAT16 = 3.0
"""Errors up to this multiple of bfloat16's rounding of the golden scores count as rounding."""
_NEAR = 30.0
"""Errors up to this multiple of the tolerance count as rounding if the checkpoint has no bfloat16 scores."""

_SIGMOID = "a sigmoid was applied (the server needs use_activation=false)"
_SOFTMAX = "a softmax over the single score was applied (the server needs use_activation=false)"
_STORED_FAULTS = {
    MEAN_POOLING: "mean pooling: all tokens are averaged, but the score belongs to the last token "
    """(vLLM: --pooler-config '{"pooling_type": "LAST"}')""",
    FIRST_TOKEN_POOLING: "first-token pooling, but the score belongs to the last token "
    """(vLLM: --pooler-config '{"pooling_type": "LAST"}')""",
    WITHOUT_ADAPTER: "the base model is served without the adapter (serve the merged folder that training wrote)",
}
_ABSURD = 1e4
"""Scores larger than this multiple of the expected scores do not come from a trained head."""
_NO_HEAD = (
    "the served folder has no trained value head (vLLM then answers from uninitialised memory): serve the merged "
    "folder that training wrote"
)
_CONSTANT = f"every prompt got the same score: first-token pooling, prompts truncated to very few tokens, or {_NO_HEAD}"
_NO_TRUNCATION = (
    "Look for a proxy or a setting that truncates (truncate_prompt_tokens): the server must refuse long prompts"
)
_OTHER_WEIGHTS = (
    "other weights (another base model or adapter than the checkpoint's, or no trained value head), or pooling of "
    "another token"
)
