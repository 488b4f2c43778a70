"""Train a quick critic: logistic regressions that order the runs of a task and predict their outcome.

Two runs of a task with different outcomes give a row with the difference of their features, whose label is which of
them is better (a pairwise logistic loss); every state gives a row with its outcome. Pairs weigh more, since a search
chooses among runs of one task. The use of words is chosen by cross-validation over tasks, and every reported
figure is of tasks that the weights were not fitted on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amc_agents.critics.quick import COUNTS, N_WORDS, QuickModel, Weights, counts_of, named_words, number_of, words_of
from amc_agents.critics.reliability import t_quantile
from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.types import FloatArray, IntArray, Trajectory

STEPS = (2, 4, 8, 16, 32, 64, 128)
"""Steps at which states of runs that go on are read."""
STRENGTH = 0.1
"""scikit-learn's C."""
WORDS = (0.0, 3.0, 30.0)
"""Candidates of the scale of words, next to counts with standard deviation 1; 0 leaves them out."""
OUTCOME_WEIGHT = 0.1
"""Weight of the rows of single states, next to the pairs of a task, which weigh 1 together."""
NAMED_FROM = 100
"""Number of runs in which the heaviest words are looked up."""
N_FOLDS = 5
LENGTH = list(COUNTS).index("length")


@dataclass(frozen=True, eq=False)
class States:
    """States with the outcome of their run, `n` of them."""

    counts: FloatArray
    """`[n, counts]`."""
    words: tuple[IntArray, ...]
    success: FloatArray
    """`[n]` outcomes, from 0 for the worst run of the data to 1 for the best."""
    task: NDArray[Any]
    """`[n]` index of the task."""
    run: IntArray
    """`[n]` index of the run."""
    step: IntArray
    """`[n]` the number of steps; 0 for a run that is over."""

    def at(self, rows: NDArray[Any]) -> States:
        """Return some of the states."""
        chosen = np.arange(len(self.success))[rows]
        return States(
            self.counts[chosen], tuple(self.words[row] for row in chosen), self.success[chosen], self.task[chosen],
            self.run[chosen], self.step[chosen],
        )  # fmt: skip

    @cached_property
    def pairs(self) -> tuple[IntArray, FloatArray]:
        """`[p, 2]` (better, worse) states of a task after the same number of steps, and their weights, 1 a task."""
        found: list[tuple[int, int]] = []
        weights: list[float] = []
        # Lists, since reading single items of an array is slow.
        success, step = self.success.tolist(), self.step.tolist()
        for task in np.unique(self.task):
            rows = np.flatnonzero(self.task == task).tolist()
            of_task = [
                (a, b) if success[a] > success[b] else (b, a)
                for a, b in combinations(rows, 2)
                if step[a] == step[b] and success[a] != success[b]
            ]
            found += of_task
            weights += [1 / max(len(of_task), 1)] * len(of_task)
        return np.array(found, dtype=np.int64).reshape(-1, 2), np.array(weights)

    @cached_property
    def spoken(self) -> IntArray:
        """`[m]` numbers of the words that some state has, sorted."""
        return np.flatnonzero(np.bincount(self._all_words, minlength=N_WORDS))

    @cached_property
    def bags(self) -> Any:
        """`[n, m]` sparse: 1 / sqrt(number of words) for each word of a state."""
        sparse, _ = _sklearn()
        column = np.zeros(N_WORDS, dtype=np.int32)
        column[self.spoken] = np.arange(len(self.spoken))
        sizes = np.array([len(row) for row in self.words], dtype=np.int64)
        values = np.repeat(1 / np.sqrt(np.maximum(sizes, 1)), sizes)
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(sizes)])
        return sparse.csr_matrix((values, column[self._all_words], ends), shape=(len(sizes), len(self.spoken)))

    @cached_property
    def _all_words(self) -> IntArray:
        return np.concatenate([*self.words, np.zeros(0, dtype=np.int64)])


@dataclass(frozen=True)
class Measured:
    """A mean over tasks with its 95% interval."""

    mean: float
    low: float
    high: float
    tasks: int

    @classmethod
    def of(cls, values: FloatArray) -> Measured:
        """Measure `[tasks]` values; the interval is Student's, and of a single value infinite."""
        n, mean = len(values), float(values.mean())
        half = t_quantile(n - 1) * float(values.std(ddof=1)) / math.sqrt(n) if n > 1 else math.inf
        return cls(mean, mean - half, mean + half, n)

    def low_among(self, looks: int) -> float:
        """Return the lower bound that holds for this and other means together, by Bonferroni's correction."""
        freedom = self.tasks - 1
        return self.mean - (self.mean - self.low) / t_quantile(freedom) * t_quantile(freedom, 1 - 0.025 / looks)


@dataclass(frozen=True, eq=False)
class QuickTraining:
    """A trained quick critic, and what it is worth on tasks that it was not trained on."""

    model: QuickModel
    scores: FloatArray
    """`[runs]` scores of the finished runs, each by weights that were not fitted on its task."""
    auc: Measured | None
    """Share of the pairs of finished runs of a task that it orders rightly; without siblings, of all pairs."""
    lead: Measured | None
    """The same minus that of the length alone."""
    by_step: dict[int, Measured]
    """Number of steps -> AUC of runs that go on."""
    siblings: bool
    """Whether there are tasks with runs of different outcomes."""
    explained: list[tuple[str, float]] = field(default_factory=list)
    """The heaviest features of finished runs with their weights."""

    @property
    def refusal(self) -> str | None:
        """Why this critic is of no use; None: it is."""
        if self.auc is None or self.auc.tasks < 2:
            return "the runs have no different outcomes to learn from: expected successes and failures in several tasks"
        if not self.auc.low > 0.5:
            return (
                f"it does not order runs of tasks that it has not seen: AUC {self.auc.mean:.2f} "
                f"[{self.auc.low:.2f}, {self.auc.high:.2f}] over {self.auc.tasks} tasks; log more tasks, "
                "or more runs each"
            )
        if self.lead is not None and not self.lead.low > 0:
            return (
                f"it knows no more than the length of a run: AUC {self.auc.mean:.2f}, {self.lead.mean:+.2f} "
                f"[{self.lead.low:+.2f}, {self.lead.high:+.2f}] over that of the length. Choosing the shortest or the "
                "longest run, or a race, needs no critic: see `amc advise`"
            )
        return None

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "auc": _plain(self.auc),
            "lead_over_length": _plain(self.lead),
            "by_step": {str(step): _plain(measured) for step, measured in self.by_step.items()},
            "siblings": self.siblings,
            "features": [[name, weight] for name, weight in self.explained],
        }


def train_quick(trajectories: Sequence[Trajectory], closing: frozenset[str] = frozenset()) -> QuickTraining:
    """Train a quick critic.

    Args:
        trajectories: finished runs with known outcomes.
        closing: actions by which the agent ends its runs.

    Raises:
        ConfigurationError: the outcomes are all equal.
        MissingExtra: scikit-learn is not installed.
    """
    if not trajectories:
        raise ConfigurationError("no run to learn from: expected runs that succeeded and runs that failed")
    return trained_on(RunStates.of(trajectories, closing))


def trained_on(states: RunStates) -> QuickTraining:
    """Train a quick critic on the states of runs; see `train_quick`."""
    over, going_on = states.over, states.going_on
    # Threads that wait for each other would take more time than these small systems.
    with _one_thread():
        model, final, middle = _model(states)
    grouped = bool(len(over.pairs[0]))
    auc, lead = _rated(over, final.scores, grouped=grouped)
    steps = [int(step) for step in np.unique(going_on.step)]
    by_step = {step: _rated_at(going_on, middle.scores, step, grouped=grouped) for step in steps}
    return QuickTraining(
        model, final.scores, auc, lead, {step: value for step, value in by_step.items() if value is not None},
        grouped, explained=_explained(final.weights, states.trajectories),
    )  # fmt: skip


def models_of_folds(states: RunStates, fold: IntArray) -> dict[int, QuickModel]:
    """Train a quick critic for each fold, on the runs of the other folds.

    Args:
        states: of all runs.
        fold: `[runs]` fold of each run; all runs of a task are in one.

    Raises:
        ConfigurationError: the outcomes outside a fold are all equal.
    """
    with _one_thread():
        return {int(number): _model(states.of_runs(fold != number))[0] for number in np.unique(fold)}


@dataclass(frozen=True, eq=False)
class RunStates:
    """The states of finished runs."""

    over: States
    """Their ends."""
    going_on: States
    """After the numbers of steps in `STEPS`."""
    returns: FloatArray
    """`[runs]`."""
    trajectories: tuple[Trajectory, ...]
    """The runs."""
    closing: frozenset[str]
    """Actions by which the agent ends its runs."""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], closing: frozenset[str]) -> RunStates:
        """Read the states."""
        returns = np.array([trajectory.return_ for trajectory in trajectories])
        return cls(*_states_of(trajectories, _shares(returns), closing), returns, tuple(trajectories), closing)

    def of_runs(self, chosen: NDArray[np.bool_]) -> RunStates:
        """Return the states of some runs, which keep their numbers; success is measured among them."""
        share = np.zeros(len(self.returns))
        share[chosen] = _shares(self.returns[chosen])
        over, going_on = (
            replace(part, success=share[part.run])
            for part in (self.over.at(chosen[self.over.run]), self.going_on.at(chosen[self.going_on.run]))
        )
        kept = tuple(run for run, is_chosen in zip(self.trajectories, chosen, strict=True) if is_chosen)
        return RunStates(over, going_on, self.returns[chosen], kept, self.closing)


def _shares(returns: FloatArray) -> FloatArray:
    shares: FloatArray = (returns - returns.min()) / max(returns.max() - returns.min(), 1e-12)
    return shares


def _model(states: RunStates) -> tuple[QuickModel, _Trained, _Trained]:
    """Return the critic, and how its parts for finished runs and for others were trained."""
    low, high = float(states.returns.min()), float(states.returns.max())
    if low == high:
        raise ConfigurationError(
            f"all {len(states.returns):,} runs have the same outcome: expected runs that succeeded and runs that failed"
        )
    final = _trained(states.over)
    # Runs of a few steps have no states in between.
    middle = _trained(states.going_on) if len(np.unique(states.going_on.success)) > 1 else final
    return QuickModel(middle.weights, final.weights, (low, high), states.closing), final, middle


def _states_of(
    trajectories: Sequence[Trajectory], success: FloatArray, closing: frozenset[str]
) -> tuple[States, States]:
    """Return the finished runs as states, and their states in between."""
    tasks = np.unique([trajectory.task.id for trajectory in trajectories], return_inverse=True)[1]
    ends = [(run, 0, replace(trajectory, done=True)) for run, trajectory in enumerate(trajectories)]
    between = [
        (run, step, trajectory.prefix(step))
        for run, trajectory in enumerate(trajectories)
        for step in STEPS
        if step < len(trajectory.steps)
    ]

    def states(rows: Sequence[tuple[int, int, Trajectory]]) -> States:
        run = np.array([row[0] for row in rows], dtype=np.int64)
        counts = np.array([counts_of(state, closing) for _, _, state in rows]).reshape(-1, len(COUNTS))
        step = np.array([row[1] for row in rows], dtype=np.int64)
        return States(counts, tuple(words_of(state) for *_, state in rows), success[run], tasks[run], run, step)

    return states(ends), states(between)


@dataclass(frozen=True, eq=False)
class _Trained:
    weights: Weights
    scores: FloatArray
    """`[n]` of each state, by weights that were not fitted on its task."""


def _trained(states: States) -> _Trained:
    """Choose the scale of words by cross-validation over tasks, fit, and calibrate on the scores of unseen tasks."""
    folds = _folds(states.task)
    scored = _cross_fitted(states, folds)
    best = max(scored, key=lambda words: _quality(states, scored[words]))
    weights = _fit(states, best)
    calibration = _calibration(scored[best], states.success)
    return _Trained(replace(weights, calibration=calibration), scored[best])


def _folds(task: NDArray[Any]) -> IntArray:
    """`[n]` fold of each state; all states of a task are in one."""
    names, index = np.unique(task, return_inverse=True)
    order = np.random.default_rng(0).permutation(len(names)) % min(N_FOLDS, max(len(names), 2))
    folds: IntArray = order[index]
    return folds


def _cross_fitted(states: States, folds: IntArray) -> dict[float, FloatArray]:
    """Return for each scale of words `[n]` scores by weights that were fitted on the states of other folds."""
    scores = {words: np.zeros(len(states.success)) for words in WORDS}
    for fold in np.unique(folds):
        inside, rows = states.at(folds != fold), np.flatnonzero(folds == fold)
        if len(np.unique(inside.success)) > 1:
            for words in WORDS:
                weights = _fit(inside, words)
                scores[words][rows] = [weights.score(states.counts[row], states.words[row]) for row in rows]
    return scores


def _fit(states: States, words: float) -> Weights:
    """Fit the weights of counts and words by the pairs of siblings and by the outcomes of single states."""
    sparse, linear = _sklearn()
    mean = states.counts.mean(axis=0)
    scale = np.maximum(states.counts.std(axis=0), 1e-6)
    # The last count is the constant, which the difference of two states does not have.
    features: Any = np.hstack([(states.counts - mean) / scale, np.ones((len(states.success), 1))])
    stacked: Any = np.vstack
    if words:
        features = sparse.hstack([sparse.csr_matrix(features), words * states.bags], format="csr", dtype=np.float32)
        stacked = partial(sparse.vstack, format="csr")
    pairs, pair_weights = states.pairs
    share = OUTCOME_WEIGHT if len(pairs) else 1.0
    difference = features[pairs[:, 0]] - features[pairs[:, 1]]
    good, bad = states.success > 0, states.success < 1
    design = stacked([difference, features[good], features[bad]])
    labels = np.repeat([1.0, 1.0, 0.0], [len(pairs), good.sum(), bad.sum()])
    row_weights = np.concatenate([pair_weights, share * states.success[good], share * (1 - states.success[bad])])
    fitted = linear.LogisticRegression(C=STRENGTH, fit_intercept=False, max_iter=500).fit(
        design, labels, sample_weight=row_weights
    )
    coefficients = fitted.coef_[0].astype(np.float64)
    hashed = np.zeros(N_WORDS)
    if words:
        hashed[states.spoken] = words * coefficients[len(COUNTS) + 1 :]
    return Weights(mean, scale, coefficients[: len(COUNTS)], hashed, np.array([0.0, 1.0]))


def _calibration(scores: FloatArray, success: FloatArray) -> FloatArray:
    _, linear = _sklearn()
    both = np.concatenate([scores, scores])[:, None]
    labels = np.concatenate([np.ones(len(scores)), np.zeros(len(scores))])
    weights = np.concatenate([success, 1 - success])
    kept = weights > 0
    fitted = linear.LogisticRegression(C=1e3).fit(both[kept], labels[kept], sample_weight=weights[kept])
    return np.array([float(fitted.intercept_[0]), float(fitted.coef_[0, 0])])


def _quality(states: States, scores: FloatArray) -> float:
    """Return the share of right pairs of siblings; without siblings, minus the log loss after calibration."""
    pairs, weights = states.pairs
    if len(pairs):
        better, worse = scores[pairs[:, 0]], scores[pairs[:, 1]]
        return float(np.average((better > worse) + 0.5 * (better == worse), weights=weights))
    intercept, slope = _calibration(scores, states.success)
    odds = intercept + slope * scores
    return -float(np.mean(np.logaddexp(0, odds) - states.success * odds))


def _rated(states: States, scores: FloatArray, *, grouped: bool) -> tuple[Measured | None, Measured | None]:
    """Return the AUC of scores, and its lead over that of the length (longer or shorter, whichever is better)."""
    ours = _aucs(states, scores, grouped=grouped)
    length = _aucs(states, states.counts[:, LENGTH], grouped=grouped)
    if not len(ours):
        return None, None
    rival = length if length.mean() >= 0.5 else 1 - length
    return Measured.of(ours), Measured.of(ours - rival)


def _rated_at(states: States, scores: FloatArray, step: int, *, grouped: bool) -> Measured | None:
    rows = states.step == step
    aucs = _aucs(states.at(rows), scores[rows], grouped=grouped)
    return Measured.of(aucs) if len(aucs) else None


def _aucs(states: States, scores: FloatArray, *, grouped: bool) -> FloatArray:
    """`[tasks]` share of right pairs of each task; without siblings, of the pairs that a task's runs are part of."""
    if grouped:
        pairs, _ = states.pairs
        by_task = states.task[pairs[:, 0]]
        right = _right(scores[pairs[:, 0]], scores[pairs[:, 1]])
        return np.array([right[by_task == task].mean() for task in np.unique(by_task)])
    middle = (states.success.min() + states.success.max()) / 2
    good = states.success > middle
    if good.all() or not good.any():
        return np.zeros(0)
    right = _right(scores[good][:, None], scores[~good][None, :])
    values = np.empty(len(scores))
    values[good], values[~good] = right.mean(axis=1), right.mean(axis=0)
    return np.array([values[states.task == task].mean() for task in np.unique(states.task)])


def _right(better: FloatArray, worse: FloatArray) -> FloatArray:
    right: FloatArray = (better > worse) + 0.5 * (better == worse)
    return right


def _explained(weights: Weights, trajectories: Sequence[Trajectory], most: int = 12) -> list[tuple[str, float]]:
    """Return the heaviest counts and words: weights of one standard deviation, or of a word in a text of 1,000."""
    named = list(zip(COUNTS, map(float, weights.counts), strict=True))
    if weights.words.any():
        spoken: dict[int, Counter[str]] = {}
        heavy = set(np.argsort(-np.abs(weights.words))[:most].tolist())
        for trajectory in trajectories[:: math.ceil(len(trajectories) / NAMED_FROM)]:
            for word in named_words(replace(trajectory, done=True)) if trajectory.steps else ():
                number = number_of(word)
                if number in heavy:
                    spoken.setdefault(number, Counter())[word] += 1
        named += [
            (names.most_common(1)[0][0], float(weights.words[number]) / math.sqrt(1_000))
            for number, names in spoken.items()
        ]
    return sorted(named, key=lambda pair: -abs(pair[1]))[:most]


def _plain(measured: Measured | None) -> dict[str, Any] | None:
    return None if measured is None else dict(vars(measured))


def _one_thread() -> AbstractContextManager[object]:
    _sklearn()
    limits: AbstractContextManager[object] = import_module("threadpoolctl").threadpool_limits(1)
    return limits


def _sklearn() -> tuple[Any, Any]:
    """Import scipy.sparse and sklearn.linear_model.

    Raises:
        MissingExtra: scikit-learn is not installed.
    """
    try:
        return import_module("scipy.sparse"), import_module("sklearn.linear_model")
    except ImportError as error:
        raise MissingExtra("scikit-learn", "advise") from error
