"""Golden prompts, and what wrong answers to them say about the server that gave them.

A server that is set up wrong still answers with numbers. The prompts' right scores show that something is wrong; the
scores that typical faults would give, and two lengthened prompts, show what.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from amc_agents.critics.render import PromptFormat
from amc_agents.types import FloatArray

MEAN_POOLING = "mean pooling"
FIRST_TOKEN_POOLING = "first-token pooling"
WITHOUT_ADAPTER = "without the adapter"
BFLOAT16 = "bfloat16"
PROBE_TOKENS = 16
"""Tokens by which a probe is longer than the longest golden prompt."""


@dataclass(frozen=True)
class Golden:
    """One prompt and the score that the trained model gave it."""

    segments: tuple[str, ...]
    """The prompt's texts, each tokenized on its own; a `Segment` where its plain text has other token ids."""
    token_ids: tuple[int, ...]
    score: float
    """The raw score, before `scale`."""
    faults: Mapping[str, float] = field(default_factory=dict)
    """What the same model gives when it is served wrong: name of the fault -> score. Empty in older files."""


def longest(golden: Sequence[Golden]) -> int:
    """Index of the longest golden prompt, the one that the probes lengthen."""
    return max(range(len(golden)), key=lambda index: len(golden[index].token_ids))


def probes(golden: Sequence[Golden], prefix_ids: Sequence[int] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The longest golden prompt, once with its first `PROBE_TOKENS` tokens at its end, once with its last in front.

    A server that cuts prompts on the right never sees the one addition, one that cuts on the left never the other:
    wherever it cuts, that probe gets the very score that the golden prompt gets.
    """
    whole = golden[longest(golden)].token_ids
    prefix, text = whole[: len(prefix_ids)], whole[len(prefix_ids) :]
    return whole + text[:PROBE_TOKENS], prefix + text[-PROBE_TOKENS:] + text


def misfit(prompt_format: PromptFormat, golden: Golden) -> str | None:
    """The part of a prompt format that cannot have written a golden prompt ("opening" or "round"); None: it fits."""
    first, *rounds = golden.segments
    if not prompt_format.opening_template.wrote(first, prompt_format.marker):
        return "opening"
    if not all(prompt_format.round_template.wrote(text, prompt_format.marker) for text in rounds):
        return "round"
    return None


def likely_cause(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str:
    """Names the fault that explains wrong answers best.

    Args:
        golden: the prompts, with the scores that typical faults would give.
        expected: `[rows]` right scores of the golden prompts, then of the probes where a checkpoint has them.
        actual: `[rows]` the answers, at least one of them wrong.
        tolerance: how far a right answer may be.
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
    """The fault whose scores leave less than a tenth of what the right ones leave unexplained."""
    right, answers = expected[: len(golden)], actual[: len(golden)]
    explanations = {_SIGMOID: 1 / (1 + np.exp(-right)), _SOFTMAX: np.ones_like(right)}
    for name, explanation in _STORED_FAULTS.items():
        if all(name in one.faults for one in golden):
            explanations[explanation] = np.array([one.faults[name] for one in golden])
    distances = {explanation: _distance(answers, scores) for explanation, scores in explanations.items()}
    best = min(distances, key=distances.__getitem__)
    if distances[best] <= max(tolerance, 0.1 * _distance(answers, right)):
        return best
    return None


def _cut_side(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str | None:
    """Truncation, where the longest prompt and a probe get one score that should be two (see `probes`)."""
    whole, at_end, at_front = longest(golden), len(golden), len(golden) + 1
    if len(actual) <= at_front:
        return None

    def confused(probe: int) -> bool:
        return bool(abs(actual[probe] - actual[whole]) <= tolerance < abs(expected[probe] - expected[whole]))

    if confused(at_end) == confused(at_front):
        return None
    side = "right, so that the newest state is lost" if confused(at_end) else "left, so that the task is lost"
    return f"prompts are cut on the {side} ({_where_cut(golden, expected, actual, tolerance)}). {_NO_TRUNCATION}"


def _precision(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str | None:
    """Answers as near as those of a number type with less precision."""
    distance = _distance(actual, expected)
    rounded = [abs(one.faults[BFLOAT16] - one.score) for one in golden if BFLOAT16 in one.faults]
    if distance > (_LIKE_BFLOAT16 * max(rounded) if rounded else _NEAR * tolerance):
        return None
    return (
        "a number type with less precision than the checkpoint's (bfloat16 or float16), or an adapter merged in it. "
        f"Serve it in the checkpoint's own type, or accept the loss by tolerance={_rounded_up(2 * distance)}"
    )


def _cut_somewhere(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str | None:
    """Truncation on a side unknown: all prompts up to some length are right, and all longer ones wrong."""
    lengths, errors = _lengths(golden, len(actual)), np.abs(actual - expected)
    wrong = errors > tolerance
    if wrong.all() or lengths[~wrong].max() >= lengths[wrong].min():
        return None
    # Rounding errs everywhere, though it may stay below the tolerance somewhere.
    if errors[~wrong].max() > 0.01 * errors[wrong].max():
        return None
    return f"prompts are cut ({_where_cut(golden, expected, actual, tolerance)}). {_NO_TRUNCATION}"


def _where_cut(golden: Sequence[Golden], expected: FloatArray, actual: FloatArray, tolerance: float) -> str:
    lengths = _lengths(golden, len(actual))
    wrong = np.abs(actual - expected) > tolerance
    kept = f"those of {lengths[~wrong].max()} are not" if not wrong.all() else "and so are all others"
    return f"prompts of {lengths[wrong].min()} tokens are wrong, {kept}"


def _lengths(golden: Sequence[Golden], rows: int) -> FloatArray:
    lengths = [len(one.token_ids) for one in golden]
    return np.array((lengths + [max(lengths) + PROBE_TOKENS] * 2)[:rows])


def _distance(one: FloatArray, other: FloatArray) -> float:
    return float(np.max(np.abs(one - other)))


def _rounded_up(number: float) -> float:
    """To one significant digit."""
    digit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / digit) * digit:.0e}")


_LIKE_BFLOAT16 = 3.0
"""How many times further than bfloat16 rounding took the golden scores still counts as rounding."""
_NEAR = 30.0
"""Tolerances that count as rounding, where a checkpoint does not say what bfloat16 does to its scores."""

_SIGMOID = "a sigmoid was applied (a server needs use_activation=false)"
_SOFTMAX = "a softmax over the one score was applied (a server needs use_activation=false)"
_STORED_FAULTS = {
    MEAN_POOLING: "mean pooling: all tokens are averaged, and the score belongs to the last one "
    """(vLLM: --pooler-config '{"pooling_type": "LAST"}')""",
    FIRST_TOKEN_POOLING: "first-token pooling: the score belongs to the last token "
    """(vLLM: --pooler-config '{"pooling_type": "LAST"}')""",
    WITHOUT_ADAPTER: "the base model is served without the adapter (serve the merged folder that training wrote)",
}
_ABSURD = 1e4
"""How many times larger than the right ones scores are that no trained head gives."""
_NO_HEAD = (
    "the served folder has no trained value head, as a language model has none (vLLM then answers from memory that was "
    "never written): serve the merged folder that training wrote"
)
_CONSTANT = f"every prompt got the same score: first-token pooling, prompts cut to very few tokens, or {_NO_HEAD}"
_NO_TRUNCATION = (
    "Look for a proxy or a setting that truncates (truncate_prompt_tokens): a prompt that is too long must be refused"
)
_OTHER_WEIGHTS = (
    "other weights (another base model or adapter than the checkpoint's, or no trained value head), or pooling of "
    "another token"
)
