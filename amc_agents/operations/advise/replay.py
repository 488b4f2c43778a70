"""What each method would have made of the logged runs: exact, over all subsets of k of a task's n runs.

A method draws k runs of a task, lets each go on for a share of its length, and takes one of them as its answer. The
runs are those of the log, so no model is called. A run that is stopped early is charged in proportion: half of its
steps cost half of its tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import combinations, product
from math import comb

import numpy as np

from amc_agents.operations.advise.runs import Runs, TaskRuns
from amc_agents.types import FloatArray, IntArray

MOST_SUBSETS = 20_000
"""With more subsets than this, as many are drawn at random, with a fixed seed."""
MEASURES = {"clock": "seconds", "steps": "steps", "tokens": "tokens"}
"""What a race goes by -> the field of `TaskRuns`."""


@dataclass(frozen=True, eq=False)
class Replayed:
    """A method, replayed on every task. Arrays are `[tasks]`, NaN where a task has too few runs or the log no data."""

    name: str
    k: int
    """Number of runs that it draws."""
    success: FloatArray
    """Mean outcome of its answer."""
    tokens: FloatArray
    cost: FloatArray
    seconds: FloatArray
    """From its start to its answer; runs go on in parallel, but for `early-stop`."""
    deployable: bool = True
    """Whether `amc()` can do it: False if it reads the outcome, or what the agent does not report at run time."""
    stop: tuple[int, float] | None = None
    """Of an early stop: the step and the threshold that all tasks together choose."""


@dataclass(frozen=True)
class Drawn:
    """A method on one task: arrays over the subsets of k runs, `[subsets, k]`."""

    index: IntArray
    """The runs of each subset."""
    chosen: FloatArray
    """Probability that a run becomes the answer; rows sum to 1."""
    share: FloatArray
    """Share of each run that is executed."""


Method = Callable[[TaskRuns, int], Drawn]


def replay(
    runs: Runs, scores: Mapping[str, Sequence[FloatArray]] | None = None, *, vote: bool = True
) -> Iterator[Replayed]:
    """Replay every method that needs the whole runs, for every k.

    Args:
        runs: of a dataset.
        scores: critic's string -> for each task, `[n]` scores of its finished runs by a critic that was not trained on
            this task.
        vote: False leaves out the vote, where no two runs have the same answer.
    """
    yield _replayed(runs, "single", 1, _any_run)
    yield _submitted(runs)
    timed = all(np.isfinite(task.seconds).all() for task in runs.tasks)
    for k in range(2, runs.most + 1):
        for kind, field in MEASURES.items():
            if kind != "clock" or timed:
                reported = kind != "tokens" or runs.tokens_are == "logged"
                yield _replayed(runs, f"race-{kind}", k, _race(field), deployable=reported)
        yield _replayed(runs, "shortest", k, _best(lambda task: -_lengths(task)))
        yield _replayed(runs, "longest", k, _best(_lengths))
        if vote:
            yield _replayed(runs, "vote", k, _vote)
        for critic, by_task in (scores or {}).items():
            of_task = {task.task: values for task, values in zip(runs.tasks, by_task, strict=True)}
            yield _replayed(runs, f"critic:{critic}", k, _best(partial(_score_in, of_task)))
        yield _replayed(runs, "known-best", k, _best(lambda task: task.success), deployable=False)


QUANTILES = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""Candidates of the share of running runs that an early stop ends; 1 is a limit of the number of steps."""
LARGEST_LOSS = 0.02
"""An early stop may cost as much of the outcomes' range on the tasks on which its threshold is chosen."""


@dataclass(frozen=True, eq=False)
class Prefixes:
    """Scores of runs that go on, by a critic that was not trained on their task."""

    scores: Mapping[int, tuple[FloatArray, ...]]
    """Number of steps -> for each task, `[n]` scores; NaN where a run has ended by then."""


def early_stops(
    runs: Runs, prefixes: Prefixes, folds: IntArray, *, attempts: int = 1, scale: float = 1.0, worst: float = 0.0
) -> Replayed:
    """Replay stopping runs whose score is below a threshold after some number of steps.

    Step and threshold are those that save the most tokens on the tasks of the other folds, without losing more than
    `LARGEST_LOSS` there.

    Args:
        runs: of a dataset.
        prefixes: scores of the states in between.
        folds: `[tasks]` fold of each task.
        attempts: 1: a stopped run is a failure. Above: another run of the task is started, at most so many in all; the
            last one is not stopped.
        scale: range of the outcomes, largest minus smallest.
        worst: outcome of a run that was stopped.
    """
    single = np.array([[task.success.mean(), task.tokens.mean()] for task in runs.tasks])

    def stopped(task: int, step: int, threshold: float) -> tuple[float, float, float, float]:
        return _stopped(runs.tasks[task], prefixes, task, step, threshold, attempts, worst)

    def chosen(tasks: Sequence[int]) -> tuple[int, float] | None:
        """Return the setting that saves the most tokens on some tasks; None: none saves any."""
        best, saved = None, 0.0
        for step, quantile in product(prefixes.scores, QUANTILES):
            threshold = _threshold(prefixes.scores[step], tasks, quantile)
            rows = np.array([stopped(task, step, threshold) for task in tasks])
            loss = (single[tasks, 0] - rows[:, 0]).mean()
            saving = 1 - rows[:, 1].sum() / single[tasks, 1].sum()
            if loss <= LARGEST_LOSS * scale and saving > saved:
                best, saved = (step, threshold), saving
        return best

    columns = np.empty((4, len(runs.tasks)))
    for fold in np.unique(folds):
        step, threshold = chosen(np.flatnonzero(folds != fold).tolist()) or (next(iter(prefixes.scores)), -np.inf)
        for task in np.flatnonzero(folds == fold).tolist():
            columns[:, task] = stopped(task, step, threshold)
    success, tokens, cost, seconds = columns
    stop = chosen(range(len(runs.tasks)))
    return Replayed("early-stop", attempts, success, tokens, cost, seconds, stop is not None, stop)


def _threshold(scores: Sequence[FloatArray], tasks: Sequence[int], quantile: float) -> float:
    """Return the score below which a share of the running runs of some tasks is; +inf: all are stopped."""
    known = np.concatenate([scores[task] for task in tasks])
    known = known[~np.isnan(known)]
    if not len(known):
        return -np.inf
    return np.inf if quantile == 1 else float(np.quantile(known, quantile))


def _stopped(
    task: TaskRuns, prefixes: Prefixes, number: int, step: int, threshold: float, attempts: int, worst: float
) -> tuple[float, float, float, float]:
    """Return outcome, tokens, cost and seconds, exact over the orders in which the runs of a task are drawn."""
    scores = prefixes.scores[step][number]
    stopped = ~np.isnan(scores) & (scores < threshold)
    n, bad = len(task), int(stopped.sum())
    share = np.where(stopped, step / task.steps, 1.0)
    whole = (task.success, task.tokens, task.cost, task.seconds)
    if attempts == 1:
        success = np.where(stopped, worst, task.success)
        return (float(success.mean()), *(float((each * share).mean()) for each in whole[1:]))  # type: ignore[return-value]
    k = min(attempts, n)
    # P(the first j draws are all stopped ones).
    first = [comb(bad, j) / comb(n, j) for j in range(k + 1)]
    n_stopped, last_is_bad = sum(first[1:k]), first[k]
    ends = [each[~stopped].mean() if bad < n else 0.0 for each in whole]
    forced = [each[stopped].mean() if bad else 0.0 for each in whole]
    lost = [0.0, *((each * share)[stopped].mean() if bad else 0.0 for each in whole[1:])]
    figures = (
        n_stopped * partial + (1 - last_is_bad) * end + last_is_bad * anyway
        for partial, end, anyway in zip(lost, ends, forced, strict=True)
    )
    return tuple(map(float, figures))  # type: ignore[return-value]


@lru_cache(maxsize=64)
def subsets(n: int, k: int) -> IntArray:
    """`[subsets, k]` every subset of k of n runs, or `MOST_SUBSETS` random ones if there are more."""
    if comb(n, k) <= MOST_SUBSETS:
        return np.array(list(combinations(range(n), k)), dtype=np.int64)
    rng = np.random.default_rng([n, k])
    return np.argsort(rng.random((MOST_SUBSETS, n)), axis=1)[:, :k].astype(np.int64)


def _replayed(runs: Runs, name: str, k: int, method: Method, *, deployable: bool = True) -> Replayed:
    rows = [_figures(task, method(task, k)) if len(task) >= k else (np.nan,) * 4 for task in runs.tasks]
    success, tokens, cost, seconds = np.array(rows, dtype=np.float64).T
    return Replayed(name, k, success, tokens, cost, seconds, deployable)


def _figures(task: TaskRuns, drawn: Drawn) -> tuple[float, float, float, float]:
    """Return a method's mean outcome, tokens, cost and seconds over the subsets."""
    index, share = drawn.index, drawn.share
    return (
        float((drawn.chosen * task.success[index]).sum(axis=1).mean()),
        float((task.tokens[index] * share).sum(axis=1).mean()),
        float((task.cost[index] * share).sum(axis=1).mean()),
        float((task.seconds[index] * share).max(axis=1).mean()),
    )


def _any_run(task: TaskRuns, k: int) -> Drawn:
    index = subsets(len(task), k)
    return Drawn(index, np.full(index.shape, 1 / k), np.ones(index.shape))


def _race(field: str) -> Method:
    """The run with the least of a measure is the answer; the others are stopped when they have reached as much."""

    def method(task: TaskRuns, k: int) -> Drawn:
        index = subsets(len(task), k)
        measure = getattr(task, field)[index]
        least = measure.min(axis=1, keepdims=True)
        # A run without a step has reached everything.
        share = np.divide(least, measure, out=np.ones_like(measure), where=measure > 0)
        return Drawn(index, _evenly(measure == least), share)

    return method


def _score_in(by_task: Mapping[str, FloatArray], task: TaskRuns) -> FloatArray:
    return by_task[task.task]


def _lengths(task: TaskRuns) -> FloatArray:
    return np.array([trajectory.length for trajectory in task.trajectories], dtype=np.float64)


def _best(score_of: Callable[[TaskRuns], FloatArray]) -> Method:
    """The run with the highest score is the answer, when all have ended."""

    def method(task: TaskRuns, k: int) -> Drawn:
        index = subsets(len(task), k)
        scores = score_of(task)[index]
        return Drawn(index, _evenly(scores == scores.max(axis=1, keepdims=True)), np.ones(index.shape))

    return method


def _vote(task: TaskRuns, k: int) -> Drawn:
    """An answer that most runs give is the answer; ties are broken at random."""
    index = subsets(len(task), k)
    labels = np.unique(task.answers, return_inverse=True)[1][index]
    votes = (labels[:, :, None] == labels[:, None, :]).sum(axis=2)
    most = votes == votes.max(axis=1, keepdims=True)
    # Each answer has as many entries as votes, so drawing an entry draws each of the tied answers equally often.
    return Drawn(index, _evenly(most), np.ones(index.shape))


def _evenly(candidates: np.ndarray) -> FloatArray:
    weights: FloatArray = candidates / candidates.sum(axis=1, keepdims=True)
    return weights


def _submitted(runs: Runs) -> Replayed:
    """Draw runs one after another until one ends by itself: what of the others' gains is only that."""
    columns: list[tuple[float, ...]] = []
    for task in runs.tasks:
        ended = task.by_itself if task.by_itself.any() else np.ones(len(task), dtype=np.bool_)
        # The expected number of draws without replacement until the first of m among n.
        draws = (len(task) + 1) / (ended.sum() + 1)
        lost = draws - 1
        others = ~ended if (~ended).any() else ended
        columns.append(
            (
                task.success[ended].mean(),
                *(
                    field[ended].mean() + lost * field[others].mean()
                    for field in (task.tokens, task.cost, task.seconds)
                ),
            )
        )
    success, tokens, cost, seconds = np.array(columns, dtype=np.float64).T
    return Replayed("submitted", 1, success, tokens, cost, seconds)
