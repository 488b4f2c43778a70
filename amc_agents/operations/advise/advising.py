"""From a dataset to advice: replay every method, correct for choosing, and say what to do and what is missing."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.quick import Weights
from amc_agents.critics.reliability import t_quantile
from amc_agents.critics.spec import parse_critic
from amc_agents.operations.advise.recommending import Row, recommend, rows_of
from amc_agents.operations.advise.replay import Prefixes, early_stops, replay
from amc_agents.operations.advise.runs import AnswerOf, Runs, closing_actions, read_runs
from amc_agents.training.quick import STEPS, QuickTraining, RunStates, States, models_of_folds, trained_on
from amc_agents.types import FloatArray, IntArray, Trajectory
from amc_agents.usage import Meter, metering

QUICK = "quick"
"""Name of the critic that is trained here, and cross-fitted by task."""
WANTED = 0.05
"""Half-width of the interval that the advice to log more aims at."""
RUNS = 4
"""Runs of a task that the advice to log more names."""
N_FOLDS = 5
TASKS_FOR_AN_AUC = 10
"""Tasks with both outcomes from which the critic's AUC after a number of steps is shown."""
IN_ONE_CALL = 64
"""States in one call of a critic."""


@dataclass(frozen=True, eq=False)
class Advice:
    """What a dataset says."""

    runs: Runs
    rows: list[Row]
    """A row for each method and k; the first is the single run."""
    recommendation: Row | None
    """The best method after the correction for choosing it, with cross-fitted figures; None: nothing is better."""
    quick: QuickTraining | None
    """The critic that was trained on all runs; None: scikit-learn is missing, or all outcomes are equal."""
    notes: list[str]
    """What the logs cannot say, and why."""

    def as_plain(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "tasks": len(self.runs.tasks),
            "runs": self.runs.n_runs,
            "methods": [row.as_plain() for row in self.rows],
            "recommendation": None if self.recommendation is None else self.recommendation.as_plain(),
            "critic": None if self.quick is None else self.quick.as_plain(),
            "notes": self.notes,
        }

    def best_of_each(self) -> list[Row]:
        """The row with the highest lower bound of each method, in the order of the rows."""
        best: dict[str, Row] = {}
        for row in self.rows:
            if row.name not in best or row.low > best[row.name].low:
                best[row.name] = row
        return list(best.values())

    @property
    def saving(self) -> Row | None:
        """The early stop that takes the fewest tokens, if it loses less than `WANTED` of success; None: none does."""
        scale = float(np.ptp(np.concatenate([task.success for task in self.runs.tasks])))
        stops = [row for row in self.rows if row.stop is not None and row.tokens is not None and row.tokens < 1]
        safe = [row for row in stops if row.low > -WANTED * scale]
        return min(safe, key=lambda row: row.tokens or 0, default=None)

    @property
    def code(self) -> str:
        """How to use what is recommended."""
        return code_of(self.recommendation)


def advise(data: str | Path, *, critics: Sequence[str] = (), answer: AnswerOf | None = None, seed: int = 0) -> Advice:
    """Replay every method on the runs of a dataset.

    Args:
        data: folder that `amc import` or `amc collect` wrote.
        critics: strings of critics to judge the finished runs with, besides the quick critic. They must not have been
            trained on these runs.
        answer: what a run answered, for the vote; None: the text of its last action.
        seed: of folds and resampled tasks.

    Raises:
        CheckpointError, ConfigurationError: the folder is not a dataset with known outcomes.
        CriticError: a critic fails.
    """
    runs = read_runs(data, answer=answer)
    notes = list(_notes(runs))
    trajectories = [trajectory for task in runs.tasks for trajectory in task.trajectories]
    returns = np.concatenate([task.success for task in runs.tasks])
    scale = float(returns.max() - returns.min()) or 1.0
    scores: dict[str, list[FloatArray]] = {}
    quick, prefixes, folds = None, None, _folds(len(runs.tasks), seed)
    if find_spec("sklearn") is None:
        notes.append("without scikit-learn no critic was trained: pip install 'amc-agents[advise]'")
    elif returns.min() == returns.max():
        notes.append("all outcomes are equal, so there is nothing to learn or to choose by")
    else:
        closing = closing_actions(trajectories)
        states = RunStates.of(trajectories, closing)
        quick = trained_on(states)
        final, between = cross_fitted(states, np.repeat(folds, [len(task) for task in runs.tasks]))
        ends = np.cumsum([len(task) for task in runs.tasks])[:-1]
        scores[QUICK] = np.split(final, ends)
        half = np.median([len(run.steps) for run in trajectories])
        prefixes = Prefixes({step: tuple(np.split(between[step], ends)) for step in STEPS if step < half})
    notes.append(_not_in_logs(quick))
    tokens: dict[str, float] = {}
    for spec in critics:
        scores[spec], tokens[spec] = asyncio.run(_judged(spec, runs))
    replayed = list(replay(runs, scores, vote=_agree(runs)))
    if prefixes is not None and prefixes.scores:
        worst = float(returns.min())
        for attempts in sorted({1, runs.most}):
            replayed.append(early_stops(runs, prefixes, folds, attempts=attempts, scale=scale, worst=worst))
    for spec, used in tokens.items():
        notes.append(f"{spec} used {used:,.0f} tokens for {runs.n_runs:,} runs")
    rows = rows_of(replayed, scale)
    recommendation = recommend(replayed, scale, seed=seed) if runs.most > 1 else None
    return Advice(runs, rows, recommendation, quick, notes)


def cross_fitted(states: RunStates, fold: IntArray) -> tuple[FloatArray, dict[int, FloatArray]]:
    """Value every state by a quick critic whose weights and settings come from the tasks of other folds.

    Args:
        states: of all runs.
        fold: `[runs]` fold of each run.

    Returns:
        `[runs]` values of the finished runs, and number of steps -> `[runs]` values after so many; NaN where a run has
        ended by then.
    """
    models = models_of_folds(states, fold)
    low, high = float(states.returns.min()), float(states.returns.max())

    def value_of(weights: Weights, part: States, row: int) -> float:
        """Return the value as `QuickModel.value` computes it at run time."""
        return low + (high - low) * weights.probability(weights.score(part.counts[row], part.words[row]))

    final = np.full(len(fold), math.nan)
    between = {step: np.full(len(fold), math.nan) for step in STEPS}
    for number, run in enumerate(states.over.run):
        final[run] = value_of(models[int(fold[run])].over, states.over, number)
    going_on = states.going_on
    for number, (run, step) in enumerate(zip(going_on.run, going_on.step, strict=True)):
        between[int(step)][run] = value_of(models[int(fold[run])].going_on, going_on, number)
    return final, between


def runs_needed(differences_deviation: float, half_width: float = WANTED) -> int:
    """Return how many tasks an interval of +- `half_width` takes, for a deviation over tasks."""
    return max(2, math.ceil((t_quantile(100) * differences_deviation / half_width) ** 2))


def code_of(row: Row | None) -> str:
    """Return the code that uses a method."""
    if row is None or not row.deployable:
        return ""
    name, _, critic = row.name.partition(":")
    template = _CODE.get(name, "")
    at_step, below = row.stop or (0, 0.0)
    return template.format(
        k=row.k,
        critic="quick:critic" if critic == QUICK else critic,
        at_step=at_step,
        below=f"{below:.4g}" if math.isfinite(below) else "math.inf",
        restarts=f", restarts={row.k - 1}" if row.k > 1 else "",
    )


_CODE = {
    "race-clock": "graph = amc(agent, n_particles={k}, race=Race())",
    "race-steps": 'graph = amc(agent, n_particles={k}, race=Race(by="steps"))',
    "race-tokens": 'graph = amc(agent, n_particles={k}, race=Race(by="tokens"))',
    "early-stop": (
        'graph = amc(agent, critic="quick:critic", n_particles=1, '
        "race=Race(stop=EarlyStop(at_step={at_step}, below={below}{restarts})))"
    ),
    "shortest": 'graph = amc(agent, n_particles={k}, select="shortest", resample=Never())',
    "longest": 'graph = amc(agent, n_particles={k}, select="longest", resample=Never())',
    "vote": 'graph = amc(agent, n_particles={k}, select="vote", resample=Never())',
    "critic": 'graph = amc(agent, critic="{critic}", n_particles={k}, select="value", resample=Never())',
}


def _notes(runs: Runs) -> Iterator[str]:
    n_tasks = len(runs.tasks)
    if runs.unknown:
        yield f"{runs.unknown:,} runs were left out: their outcome is unknown"
    if runs.most < 2:
        deviation = float(np.concatenate([task.success for task in runs.tasks]).std())
        needed = runs_needed(deviation)
        more = sum(max(0, RUNS - len(task)) for task in runs.tasks[:needed]) + RUNS * max(0, needed - n_tasks)
        yield (
            f"most of the {n_tasks:,} tasks have one run, so no method that chooses among runs of a task can be "
            f"replayed: log at least 2, better {RUNS}, runs of the same tasks. An interval of +-{WANTED:g} takes about "
            f"{needed:,} tasks, so about {more:,} more runs"
        )
    if runs.tokens_are == "text":
        yield "tokens are estimated from the text, four characters each: the logs do not count them for every run"
    if not all(np.isfinite(task.seconds).all() for task in runs.tasks):
        yield "no race by the clock and no latency: some runs have no time of start and end"


def _not_in_logs(quick: QuickTraining | None) -> str:
    """Return what logs cannot tell, and what the critic's figures say about it."""
    text = (
        "resampling and forks cannot be replayed: what a run would have done after another past is in no log. "
        "`amc bench` measures them"
    )
    rated = {} if quick is None else {step: auc for step, auc in quick.by_step.items() if auc.tasks >= TASKS_FOR_AN_AUC}
    if quick is None or not rated:
        return text
    among = "siblings" if quick.siblings else "runs of all tasks"
    shown = ", ".join(f"{auc.mean:.2f} [{auc.low:.2f}, {auc.high:.2f}] after {step}" for step, auc in rated.items())
    useful = any(auc.low_among(len(rated)) > 0.5 for auc in rated.values())
    looks = f" (corrected for {len(rated)} looks)" if len(rated) > 1 else ""
    verdict = f"above chance{looks}" if useful else f"not above chance{looks}, so they would have nothing to go by"
    return f"{text}. The quick critic orders {among} that go on with an AUC of {shown} steps: {verdict}"


def _agree(runs: Runs) -> bool:
    """Whether any two runs of a task have the same answer."""
    return any(len(set(task.answers)) < len(task) for task in runs.tasks)


def _folds(n: int, seed: int) -> IntArray:
    return np.random.default_rng(seed).permutation(n) % max(2, min(N_FOLDS, n))


async def _judged(spec: str, runs: Runs) -> tuple[list[FloatArray], float]:
    """Return a critic's value of every finished run, and the tokens that it used."""
    critic = parse_critic(spec)
    states = [replace(run, steps=_unrewarded(run), done=True) for task in runs.tasks for run in task.trajectories]
    meter = Meter()
    with metering(meter):
        values = [
            await critic.values(states[start : start + IN_ONE_CALL]) for start in range(0, len(states), IN_ONE_CALL)
        ]
    joined = np.concatenate(values)
    ends = np.cumsum([len(task) for task in runs.tasks])[:-1]
    return list(np.split(joined, ends)), float(sum(usage.tokens for usage in meter.read().values()))


def _unrewarded(run: Trajectory) -> tuple[Any, ...]:
    """Return the steps of a run without the outcome, which a critic must not read."""
    return tuple(replace(step, reward=0.0) for step in run.steps)
