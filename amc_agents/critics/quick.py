"""The quick critic, `quick:FOLDER`: a logistic regression on counts and words, which scores a state in under 1 ms.

`amc train quick` writes the folder. A state is described by `COUNTS`, which hold for any agent with tools, and by the
words of its newest texts; a run that is over also by the words of all its texts and by its tools. There are two sets of
weights: one for states of runs that go on, one for runs that are over. What is stored are plain arrays.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.spec import allow, needed
from amc_agents.errors import CheckpointError
from amc_agents.files import read_json_object, replace_file
from amc_agents.types import FloatArray, IntArray, Step, Trajectory

KIND, VERSION = "quick critic", 2
COUNTS = {
    "steps": "number of steps",
    "length": "length of the text",
    "thoughts": "length of the agent's own text",
    "observations": "length of the observations",
    "failures": "share of observations that report a failure",
    "failures lately": "the same in the last six steps",
    "repeated": "share of actions that were made before",
    "tests": "share of actions that test or check something",
    "tests lately": "the same in the last six steps",
    "edits": "share of actions that write something",
    "passes lately": "share of the last six observations that report a success",
    "claims": "words of success in the newest thought",
    "doubts": "words of doubt in the thoughts of the last six steps",
    "last thought": "length of the newest thought",
    "ended": "the agent ended the run itself",
}
"""Name -> meaning. Numbers and lengths are logarithms: log(1 + x)."""
LATELY = 6
"""Number of steps that count as the newest."""
N_WORDS = 1 << 16
"""Number of hashed words and pairs of words."""
NAME_LENGTH = 3
"""Words at the beginning of an action that name its tool or command."""
MOST_TEXT = 2_000
"""Characters at the end of a text whose words are read; of a longer observation, its beginning and end are searched."""

_FAILURE = (
    "error", "traceback", "exception", "failed", "failure", "not found", "no such", "denied", "invalid", "timed out",
    "cannot", "unable",
)  # fmt: skip
_SUCCESS = ("passed", "success", "verified", "all tests", "correct", "matches", "works", "complete")
_DOUBT = ("however", "unfortunately", "hmm", "wait", "issue", "problem", "approximat", "not sure", "maybe", "instead")
_TEST = ("test", "verify", "check", "assert", "validate", "diff ")
_EDIT = ("cat >", "cat <<", "> /", "sed -i", "write", "edit", "patch", "replace", "insert", "create", "update")


@dataclass(frozen=True, slots=True)
class _StepCounts:
    thought: int
    action: int
    observation: int
    failure: bool
    passes: bool
    test: bool
    edit: bool
    doubts: int


@lru_cache(maxsize=1 << 16)
def _counted(step: Step) -> _StepCounts:
    """Count what a step contributes; a trajectory that grows by one step counts that step only."""
    observation = _searched(step.observation)
    action = _searched(step.action)
    thought = _searched(step.thought)
    return _StepCounts(
        len(step.thought), len(step.action), len(step.observation),
        any(word in observation for word in _FAILURE), any(word in observation for word in _SUCCESS),
        any(word in action for word in _TEST), any(word in action for word in _EDIT),
        sum(thought.count(word) for word in _DOUBT),
    )  # fmt: skip


def _searched(text: str) -> str:
    return (text if len(text) <= MOST_TEXT else text[: MOST_TEXT // 2] + text[-MOST_TEXT // 2 :]).lower()


def counts_of(trajectory: Trajectory, closing: frozenset[str] = frozenset()) -> FloatArray:
    """`[len(COUNTS)]` what is counted of a state.

    Args:
        trajectory: the state.
        closing: actions by which the agent ends its runs.
    """
    steps = trajectory.steps
    if not steps:
        return np.zeros(len(COUNTS))
    counted = [_counted(step) for step in steps]
    newest = counted[-LATELY:]
    last = steps[-1]
    thought = _searched(last.thought)
    n = len(steps)
    thoughts, observations = sum(each.thought for each in counted), sum(each.observation for each in counted)
    total = thoughts + observations + sum(each.action for each in counted)
    ended = trajectory.done and not trajectory.truncated and (not last.observation or last.action in closing)
    return np.array(
        [
            math.log1p(n),
            math.log1p(total),
            math.log1p(thoughts),
            math.log1p(observations),
            sum(each.failure for each in counted) / n,
            sum(each.failure for each in newest) / len(newest),
            1 - len({step.action for step in steps}) / n,
            sum(each.test for each in counted) / n,
            sum(each.test for each in newest) / len(newest),
            sum(each.edit for each in counted) / n,
            sum(each.passes for each in newest) / len(newest),
            math.log1p(sum(thought.count(word) for word in _SUCCESS)),
            math.log1p(sum(each.doubts for each in newest)),
            math.log1p(counted[-1].thought),
            float(ended),
        ]
    )


def words_of(trajectory: Trajectory) -> IntArray:
    """Return the numbers of the words of a state, sorted; see `named_words`."""
    if not trajectory.steps:
        return np.zeros(0, dtype=np.int64)
    there = np.zeros(N_WORDS, dtype=np.bool_)
    there[[number_of(word) for word in _newest_words(trajectory.steps[-1])]] = True
    if trajectory.done:
        for step in trajectory.steps:
            there[_numbers_of(step)] = True
    return np.flatnonzero(there).astype(np.int64)


@lru_cache(maxsize=1 << 17)
def number_of(word: str) -> int:
    """Return the number of a word; different words may share one."""
    return zlib.crc32(word.encode()) % N_WORDS


def named_words(trajectory: Trajectory) -> Iterator[str]:
    """Yield the words of a state with the text that they stand in.

    Those of the newest texts, and their pairs: `last thought: done`. Of a run that is over, also those of all texts and
    of its tools: `thought: done`, `ran: pytest`.
    """
    yield from _newest_words(trajectory.steps[-1])
    if trajectory.done:
        for step in trajectory.steps:
            yield from _all_words(step)


def _newest_words(step: Step) -> Iterator[str]:
    for place, text in _texts(step):
        words = [word for word in _split(text[-MOST_TEXT:].lower()) if len(word) > 1]
        yield from (f"last {place}: {word}" for word in words)
        yield from (f"last {place}: {first} {second}" for first, second in pairwise(words))


def _all_words(step: Step) -> Iterator[str]:
    for place, text in _texts(step):
        yield from (f"{place}: {word}" for word in set(_split(text[-MOST_TEXT:].lower())) if len(word) > 1)
    yield from (f"ran: {word}" for word in _split(step.action[:MOST_TEXT].lower())[:NAME_LENGTH])


@lru_cache(maxsize=1 << 14)
def _numbers_of(step: Step) -> IntArray:
    """Number a step's words once, however many states have it."""
    return np.array(sorted({number_of(word) for word in _all_words(step)}), dtype=np.int32)


def _texts(step: Step) -> tuple[tuple[str, str], ...]:
    return ("thought", step.thought), ("action", step.action), ("observation", step.observation)


def _split(text: str) -> list[str]:
    return text.translate(_LETTERS).split()


class _Letters(dict[int, int]):
    """Character -> itself if it is a letter, otherwise a space."""

    def __missing__(self, character: int) -> int:
        self[character] = kept = character if chr(character).isalpha() else ord(" ")
        return kept


_LETTERS = _Letters()


@dataclass(frozen=True, eq=False)
class Weights:
    """A linear score of states, and the probability of a success that belongs to it."""

    mean: FloatArray
    """`[counts]` mean and standard deviation of the counts over the training states."""
    scale: FloatArray
    counts: FloatArray
    """`[counts]` weight of each standardized count."""
    words: FloatArray
    """`[N_WORDS]` weight of each word; all 0: words were of no use."""
    calibration: FloatArray
    """`[2]` intercept and slope: log-odds of a success = intercept + slope x score."""

    def score(self, counts: FloatArray, words: IntArray) -> float:
        """Return the score of a state, whose order among the runs of a task is what was trained."""
        known = float(((counts - self.mean) / self.scale) @ self.counts)
        return known + float(self.words[words].sum()) / math.sqrt(max(len(words), 1))

    def probability(self, score: float) -> float:
        """Return the calibrated probability of a success."""
        intercept, slope = self.calibration
        return float(1 / (1 + math.exp(-max(-50.0, min(50.0, intercept + slope * score)))))


@dataclass(frozen=True, eq=False)
class QuickModel:
    """The weights of a quick critic."""

    going_on: Weights
    """For states of runs that go on."""
    over: Weights
    """For runs that are over."""
    returns: tuple[float, float]
    """Return of a failure and of a success, in reward units."""
    closing: frozenset[str]
    """Actions by which the agent ends its runs."""

    def score(self, trajectory: Trajectory) -> float:
        """Return the score of a state."""
        weights = self.over if trajectory.done else self.going_on
        return weights.score(counts_of(trajectory, self.closing), words_of(trajectory))

    def value(self, trajectory: Trajectory) -> float:
        """Return the expected whole return of a state."""
        weights = self.over if trajectory.done else self.going_on
        low, high = self.returns
        return low + (high - low) * weights.probability(self.score(trajectory))

    def save(self, folder: Path, report: Mapping[str, Any]) -> None:
        """Write `quick.npz` and `quick.json` into a folder.

        Raises:
            StorageError: they cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        arrays = {f"{name}_{field}": getattr(weights, field) for name, weights in self._parts for field in _ARRAYS}

        def write(path: Path) -> None:
            with path.open("wb") as file:
                np.savez_compressed(file, **arrays)

        replace_file(folder / "quick.npz", write)
        content = {
            "kind": KIND, "version": VERSION, "returns": list(self.returns), "closing": sorted(self.closing),
            "counts": list(COUNTS), "report": dict(report),
        }  # fmt: skip
        replace_file(folder / "quick.json", json.dumps(content, indent=1))

    @property
    def _parts(self) -> tuple[tuple[str, Weights], ...]:
        return ("going_on", self.going_on), ("over", self.over)

    @classmethod
    def load(cls, folder: Path) -> QuickModel:
        """Read a folder that `save` wrote.

        Raises:
            CheckpointError: it is not such a folder, or damaged.
        """
        remedy = "expected a folder that `amc train quick` wrote; train the critic again"
        content = read_json_object(folder / "quick.json", remedy=remedy)
        if (content.get("kind"), content.get("version"), content.get("counts")) != (KIND, VERSION, list(COUNTS)):
            raise CheckpointError(f"{folder / 'quick.json'} is not of this version: {remedy}")
        try:
            with np.load(folder / "quick.npz") as arrays:
                parts = [
                    Weights(*(_checked(arrays[f"{name}_{field}"], field) for field in _ARRAYS))
                    for name in ("going_on", "over")
                ]
            low, high = map(float, content["returns"])
            return cls(parts[0], parts[1], (low, high), frozenset(map(str, content["closing"])))
        except (OSError, ValueError, KeyError, TypeError, EOFError, zlib.error) as error:
            raise CheckpointError(f"{folder / 'quick.npz'} is damaged ({type(error).__name__}): {remedy}") from None


_ARRAYS = {
    "mean": len(COUNTS), "scale": len(COUNTS), "counts": len(COUNTS), "words": N_WORDS, "calibration": 2,
}  # fmt: skip
"""Field of `Weights` -> its length."""


def _checked(array: FloatArray, field: str) -> FloatArray:
    if array.shape != (_ARRAYS[field],) or array.dtype != np.float64 or not np.isfinite(array).all():
        raise ValueError(field)
    return array


class QuickCritic:
    """A trained quick critic.

    Args:
        folder: that `amc train quick` wrote.

    Raises:
        CheckpointError: the folder is not such a critic.
    """

    predicts = "return"
    """Predicts the whole return, so it can also score trajectories that are over."""

    def __init__(self, folder: str | Path) -> None:
        self.name = f"quick:{folder}"
        self.model = QuickModel.load(Path(folder))
        self.returns = self.model.returns

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` expected whole returns, in reward units."""
        return np.array([self.model.value(trajectory) for trajectory in trajectories], dtype=np.float64)


def from_spec(target: str, options: Mapping[str, str]) -> QuickCritic:
    """Make the critic of `quick:FOLDER`."""
    allow("quick", options)
    return QuickCritic(needed("quick", target, "FOLDER"))
