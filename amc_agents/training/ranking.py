"""Measure whether a critic ranks siblings: runs of the same task, compared at the same step.

A resampling moves probability between particles of one task, so a critic helps only if it tells those apart. A critic
that knows which tasks are easy, or how long runs of this agent usually are, has a good AUC over all states and does not
help. Siblings share their task, which excludes the first. Where the data have no siblings, runs of different tasks are
compared at the same step, and the critic has to beat critics that know only the instruction, the length or the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from amc_agents.critics.reliability import t_quantile
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.training.value.targets import state_keys
from amc_agents.types import FloatArray, IntArray, Trajectory

Comparison = Literal["siblings", "equal step", "nothing"]
Verdict = Literal["ranks", "reversed", "undecided", "confounded", "too few"]

LEAST_TASKS = 5
"""Fewest tasks of a verdict, and of a comparison of siblings."""
ENOUGH_TASKS = 50
"""From this number of tasks on, intervals come from a bootstrap over tasks, which is too narrow for fewer tasks."""
RIVALS = ("instruction", "length", "step number")
"""Critics that know only one thing: the instruction (the critic's own value before the first step), the length of the
text so far (longer or shorter, whichever is better), and the number of the step (which is equal: AUC 0.5)."""


class Interval(NamedTuple):
    """An AUC, or the difference of two, with its 95% interval over tasks."""

    mean: float
    """Share of pairs in which the run with the better outcome has the higher value; ties count as half."""
    low: float
    high: float
    """Bootstrap over tasks; Student's t below `ENOUGH_TASKS` tasks. NaN for a single task, as `low`."""
    pairs: int
    """Number of compared pairs of states."""
    tasks: int
    """Number of tasks that these states belong to."""


class Rival(NamedTuple):
    """A critic that knows only one thing."""

    auc: Interval
    lead: Interval
    """AUC of the critic minus that of the rival, on the same pairs."""


@dataclass(frozen=True)
class RankingReport:
    """How a critic ranks runs that have come equally far."""

    comparison: Comparison
    """Which runs were compared: of the same task, of different tasks, or none."""
    auc: Interval | None
    """Over all steps; None without a pair of different outcomes."""
    by_step: Mapping[int, Interval]
    """Step t -> AUC of the values of s_t against the outcome."""
    at_end: Interval | None
    """AUC of the values of final states of siblings, by which a run without rewards picks its answer."""
    rivals: Mapping[str, Rival]
    """Name, one of `RIVALS` -> the critic that knows only this."""

    @property
    def unbeaten(self) -> list[str]:
        """The rivals that the critic does not beat."""
        return [name for name, rival in self.rivals.items() if not rival.lead.low > 0]

    @property
    def verdict(self) -> Verdict:
        """Whether the critic ranks siblings; without siblings, whether it beats every rival."""
        if self.auc is None or self.auc.tasks < LEAST_TASKS:
            return "too few"
        if self.auc.high < 0.5:
            return "reversed"
        if not self.auc.low > 0.5:
            return "undecided"
        return "confounded" if self.comparison == "equal step" and self.unbeaten else "ranks"

    @property
    def sentences(self) -> list[str]:
        """The result in words."""
        return list(_sentences(self))

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values, for a checkpoint's `metrics["ranking"]`."""
        return {
            "verdict": self.verdict,
            "sentences": self.sentences,
            "comparison": self.comparison,
            "auc": _plain(self.auc),
            "by_step": {str(step): _plain(interval) for step, interval in self.by_step.items()},
            "at_end": _plain(self.at_end),
            "rivals": {
                name: {"auc": _plain(rival.auc), "lead": _plain(rival.lead)} for name, rival in self.rivals.items()
            },
        }


def ranking(
    scored: Iterable[tuple[Trajectory, FloatArray]], *, predicts: str = "return", seed: int = 0
) -> RankingReport:
    """Measure whether a critic ranks siblings; without siblings, whether it knows more than three simple critics.

    States of finished trajectories with a known outcome are compared in pairs at the same step t: the trajectories
    have different outcomes (whole returns), neither ends at t, and their states differ. With at least `LEAST_TASKS`
    tasks that have such pairs, only trajectories of the same task are compared, otherwise only those of different
    tasks. A few numbers per state are in memory.

    Args:
        scored: trajectories of tasks that the critic was not trained on, each with its values `[T + 1]`.
        predicts: "return" if a value predicts the whole return; "future": the return to come, to which the return so
            far is added, as a run does.
        seed: seed of the bootstrap, and of the choice where a step has more than 1,000 states to compare.

    Raises:
        ConfigurationError: the number of values of a trajectory is not T + 1, or `predicts` is unknown.
    """
    if predicts not in ("return", "future"):
        raise ConfigurationError(f"predicts is {quoted(predicts)}: expected 'return' or 'future'")
    states = _States.of(scored, future=predicts == "future")
    rng = np.random.default_rng(seed)
    siblings = _count(states, states.of_siblings(states.live), rng, across_tasks=False)
    if np.count_nonzero(siblings.pairs.sum(axis=0)) >= LEAST_TASKS:
        ends = _count(states, states.of_siblings(~states.live, at_end=True), rng, across_tasks=False)
        at_end = ends.interval(ends.better[..., 0], seed) if predicts == "return" else None
        return siblings.report("siblings", at_end, seed)
    across = _count(states, states.of_steps(), rng, across_tasks=True)
    return across.report("equal step" if across.pairs.any() else "nothing", None, seed)


class _States(NamedTuple):
    """`[S]` states of all trajectories."""

    task: IntArray
    step: IntArray
    live: npt.NDArray[np.bool_]
    """Whether the trajectory goes on."""
    outcome: FloatArray
    """Whole return of the trajectory."""
    key: npt.NDArray[np.uint64]
    """Equal for equal states."""
    scores: FloatArray
    """`[S, 3]` value, value before the first step, length."""

    @classmethod
    def of(cls, scored: Iterable[tuple[Trajectory, FloatArray]], *, future: bool) -> _States:
        numbers: dict[str, int] = {}
        parts: list[_States] = []
        for trajectory, values in scored:
            n = len(trajectory.steps) + 1
            if len(values) != n:
                raise ConfigurationError(f"a trajectory of {n - 1} steps has {len(values)} values: expected {n}")
            if not trajectory.done or math.isnan(trajectory.return_):
                continue
            value = np.asarray(values, dtype=np.float64)
            if future:
                value = value + np.cumsum([0.0, *(step.reward for step in trajectory.steps)])
            part = cls(
                np.full(n, numbers.setdefault(trajectory.task.id, len(numbers))),
                np.arange(n),
                np.arange(n) < n - 1,
                np.full(n, trajectory.return_),
                state_keys(trajectory)[:, 0],
                np.stack([value, np.full(n, value[0]), _lengths(trajectory)], axis=1),
            )
            parts.append(part)
        if not parts:
            none = np.zeros(0, np.int64)
            return cls(none, none, np.zeros(0, bool), np.zeros(0), np.zeros(0, np.uint64), np.zeros((0, 3)))
        return cls(
            np.concatenate([part.task for part in parts]),
            np.concatenate([part.step for part in parts]),
            np.concatenate([part.live for part in parts]),
            np.concatenate([part.outcome for part in parts]),
            np.concatenate([part.key for part in parts]),
            np.concatenate([part.scores for part in parts]),
        )

    def of_siblings(self, chosen: npt.NDArray[np.bool_], *, at_end: bool = False) -> Iterator[IntArray]:
        """Yield the indices of states of the same task and step; at the end, steps may differ."""
        return _groups(chosen, self.task, np.zeros_like(self.step) if at_end else self.step)

    def of_steps(self) -> Iterator[IntArray]:
        """Yield the indices of states of the same step."""
        return _groups(self.live, np.zeros_like(self.task), self.step)


class _Counts(NamedTuple):
    """Pairs of states, and how often each critic ranks them right. A pair across tasks counts for both tasks."""

    steps: IntArray
    """`[T]` the steps with pairs."""
    pairs: FloatArray
    """`[T, K]` pairs of each step and task."""
    better: FloatArray
    """`[T, K, 3]` of them, those in which each critic has the higher value for the better outcome."""
    across_tasks: bool

    def report(self, comparison: Comparison, at_end: Interval | None, seed: int) -> RankingReport:
        auc = self.interval(self.better[..., 0], seed)
        by_step = {}
        for number, step in enumerate(self.steps.tolist()):
            here = _Counts(self.steps, self.pairs[[number]], self.better[[number]], self.across_tasks)
            interval = here.interval(here.better[..., 0], seed)
            if interval is not None:
                by_step[step] = interval
        rivals = {} if auc is None else {name: self._rival(name, seed) for name in RIVALS}
        return RankingReport(comparison, auc, by_step, at_end, rivals)

    def interval(self, better: FloatArray, seed: int, least: float = 0.0) -> Interval | None:
        """Share of the pairs that `better` counts `[T, K]`, with its interval over tasks, cut at `least` and 1."""
        by_task, pairs = better.sum(axis=0), self.pairs.sum(axis=0)
        compared = pairs > 0
        by_task, pairs = by_task[compared], pairs[compared]
        if not len(pairs):
            return None
        mean = float(by_task.sum() / pairs.sum())
        # A pair across tasks depends on both, so that its sum moves twice as much when tasks are drawn again.
        order = 2 if self.across_tasks else 1
        low, high = _bounds(mean, order * (by_task - mean * pairs), pairs, seed)
        low, high = max(low, least), min(high, 1.0)
        return Interval(mean, low, high, int(pairs.sum()) // order, len(pairs))

    def _rival(self, name: str, seed: int) -> Rival:
        better = self.better[..., RIVALS.index(name) + 1] if name != "step number" else self.pairs / 2
        if name == "length" and better.sum() < self.pairs.sum() / 2:
            better = self.pairs - better
        auc, lead = self.interval(better, seed), self.interval(self.better[..., 0] - better, seed, -1.0)
        assert auc is not None
        assert lead is not None
        return Rival(auc, lead)


def _count(states: _States, groups: Iterable[IntArray], rng: np.random.Generator, *, across_tasks: bool) -> _Counts:
    """Compare the states of each group in pairs."""
    n_tasks = int(states.task.max()) + 1 if len(states.task) else 0
    pairs: dict[int, FloatArray] = {}
    better: dict[int, FloatArray] = {}
    for group in groups:
        if len(group) > _MOST:
            group = np.sort(rng.choice(group, _MOST, replace=False))
        outcome, task, key = states.outcome[group], states.task[group], states.key[group]
        above = outcome[:, None] > outcome[None, :]
        above &= task[:, None] != task[None, :] if across_tasks else key[:, None] != key[None, :]
        if not above.any():
            continue
        step = int(states.step[group[0]])
        if step not in pairs:
            pairs[step], better[step] = np.zeros(n_tasks), np.zeros((n_tasks, 3))
        _add(pairs[step], above, task, across_tasks)
        for critic in range(3):
            score = states.scores[group, critic]
            right = (score[:, None] > score[None, :]) + 0.5 * (score[:, None] == score[None, :])
            _add(better[step][:, critic], right * above, task, across_tasks)
    steps = sorted(pairs)
    return _Counts(
        np.array(steps, dtype=np.int64),
        np.array([pairs[step] for step in steps]).reshape(len(steps), n_tasks),
        np.array([better[step] for step in steps]).reshape(len(steps), n_tasks, 3),
        across_tasks,
    )


def _add(sums: FloatArray, pairs: npt.NDArray[Any], task: IntArray, across_tasks: bool) -> None:
    """Add the pairs `[n, n]` of states to the sums `[K]` of their tasks."""
    by_state = pairs.sum(axis=1) + (pairs.sum(axis=0) if across_tasks else 0)
    sums += np.bincount(task, by_state, len(sums))


def _groups(chosen: npt.NDArray[np.bool_], *keys: IntArray) -> Iterator[IntArray]:
    """Yield the indices of chosen states with equal keys; states alone with their keys are left out."""
    index = np.flatnonzero(chosen)
    index = index[np.lexsort([key[index] for key in reversed(keys)])]
    if not len(index):
        return
    changes = np.any([np.diff(key[index]) != 0 for key in keys], axis=0)
    for group in np.split(index, np.flatnonzero(changes) + 1):
        if len(group) > 1:
            yield group


def _bounds(mean: float, deviations: FloatArray, pairs: FloatArray, seed: int) -> tuple[float, float]:
    """The 95% interval of a ratio of sums over tasks, from the `[K]` deviations of the tasks' numerators."""
    n_tasks, total = len(pairs), pairs.sum()
    if n_tasks < 2:
        return math.nan, math.nan
    if n_tasks < ENOUGH_TASKS:
        error = math.sqrt(n_tasks / (n_tasks - 1) * float(np.sum(deviations**2))) / total
        half = t_quantile(n_tasks - 1) * error
        return mean - half, mean + half
    drawn = _resamples(n_tasks, seed)
    # A resample may contain no pair at all.
    means = mean + (drawn @ deviations) / np.maximum(drawn @ pairs, 1.0)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@lru_cache(maxsize=2)
def _resamples(n_tasks: int, seed: int) -> FloatArray:
    """`[resamples, K]` how often each task is drawn."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(n_tasks, np.full(n_tasks, 1 / n_tasks), size=_RESAMPLES).astype(np.float64)


def _lengths(trajectory: Trajectory) -> FloatArray:
    """`[T + 1]` characters of the text that a critic reads at each state."""
    rounds = (len(step.thought) + len(step.action) + len(step.observation) for step in trajectory.steps)
    return np.cumsum([len(trajectory.task.instruction), *rounds]).astype(np.float64)


def _plain(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {name: None if value != value else value for name, value in interval._asdict().items()}


def _sentences(report: RankingReport) -> Iterator[str]:
    auc = report.auc
    if auc is None:
        yield "Whether it ranks runs is unknown: no two held-out runs with different outcomes can be compared."
        return
    share = f"{_percent(auc)}; {auc.pairs:,} pairs of states, {auc.tasks:,} tasks"
    if report.comparison == "siblings":
        yield f"{_SIBLINGS[report.verdict]} Of two runs of a task, the better one has the higher value in {share}."
        by_length_alone = report.rivals["length"].auc.low > 0.5
        if report.verdict == "ranks" and by_length_alone and "length" in report.unbeaten:
            by_length = _percent(report.rivals["length"].auc)
            yield f"The length of the text alone ranks {by_length}: the critic may know only that."
        return
    yield (
        "Siblings cannot be compared: collect or import several runs of the same task with different outcomes. Runs of "
        f"different tasks were compared at the same step: the better one has the higher value in {share}."
    )
    if report.verdict == "too few":
        yield f"That is too few tasks for a verdict: at least {LEAST_TASKS} are needed."
    elif report.unbeaten:
        yield (
            f"It may know only the {' and the '.join(report.unbeaten)}: it does not beat a critic of that alone "
            "(95% interval). Such a critic cannot tell the particles of a run apart."
        )
    else:
        yield "It beats critics of the instruction, the length and the step number alone (95% intervals)."


def _percent(interval: Interval) -> str:
    if math.isnan(interval.low):
        return f"{interval.mean:.1%} of pairs"
    return f"{interval.mean:.1%} of pairs (95% interval {interval.low:.1%} to {interval.high:.1%})"


_SIBLINGS: Mapping[Verdict, str] = {
    "ranks": "It ranks siblings.",
    "reversed": "It ranks siblings the wrong way round.",
    "undecided": "There is no evidence that it ranks siblings.",
}
_MOST = 1000
"""Most states of a step, or of a task's step, that are compared."""
_RESAMPLES = 1000
