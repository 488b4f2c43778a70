"""Calibrate a goal critic's Q to a probability, from the outcomes of held-out (state, thought, goal) triples.

Goals must not come from a trajectory's own future: those are all reached, and Q, trained on them, is optimistic in
stochastic worlds. So goals come from other trajectories (of the same task, if it has others), or from the proposer that
is used for decisions. A goal counts as reached if a later state of the same trajectory has the same name, or is similar
enough in meaning, or if a judge says so. A truncated trajectory counts only as far as it was observed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.language_models import BaseChatModel

from amc_agents.critics.goal.calibration import Calibration, fit_calibration
from amc_agents.critics.goal.checkpoint import GoalCheckpoint, GoalNetwork
from amc_agents.critics.goal.embeddings import TextEmbeddings, Vectors, as_embeddings
from amc_agents.critics.goal.summaries import Summary, as_summary
from amc_agents.critics.reliability import Bin, calibration_error, reliability
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.pnlc.types import Proposer
from amc_agents.quoting import quoted
from amc_agents.training.dataset import data_hash
from amc_agents.training.goal.data import BoolArray, Episode, GoalData, as_episodes, goal_data, thought_of
from amc_agents.training.goal.metrics import siblings
from amc_agents.training.splits import split_by_task, task_of_trajectory
from amc_agents.types import FloatArray, IntArray, Trajectory

Reached = float | Callable[[str, str], bool]
"""When a goal is reached: minimum cosine with the state's name as a goal, or a judge of (goal, name)."""

SAME_GOAL = 0.95
"""Default minimum cosine at which two goals count as the same."""


class Triples(NamedTuple):
    """Outcomes of `[n]` (state, thought, goal) triples of held-out trajectories."""

    q: FloatArray
    """Uncalibrated Q of the critic."""
    reached: BoolArray
    """Whether the goal was reached."""
    task: IntArray
    """Number of the task."""


@dataclass(frozen=True)
class CalibrationReport:
    """Quality of a critic's probabilities, cross-fitted between two halves of the tasks."""

    goals: str
    """Source of the goals: "independent" or "proposed"."""
    label: str
    """Rule by which a goal counted as reached."""
    n_triples: int
    n_tasks: int
    reached: float
    """Share of triples whose goal was reached."""
    before: tuple[Bin, ...]
    """Reliability of Q, clipped to [0, 1]."""
    after: tuple[Bin, ...]
    """Reliability of the probability; each half of the tasks is evaluated with the curve of the other half."""
    error_before: float
    """Expected calibration error of Q."""
    error_after: float
    """Expected calibration error of the probability."""

    def as_plain(self) -> dict[str, Any]:
        """Convert to JSON values."""
        bins = {name: [bin._asdict() for bin in getattr(self, name)] for name in ("before", "after")}
        return {**asdict(self), **bins}


def calibrate_goal(
    folder: str | Path,
    episodes: Sequence[Trajectory | Episode],
    *,
    proposer: Proposer | None = None,
    reached: Reached = SAME_GOAL,
    n_triples: int = 4000,
    embeddings: str | TextEmbeddings | Embeddings | None = None,
    summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary | None = None,
    seed: int = 0,
) -> GoalCheckpoint:
    """Recalibrate a trained critic and save it with the curve and its report (`metrics["calibration"]`).

    Args:
        folder: folder that `amc train goal` wrote.
        episodes: the training data, of which the held-out tasks are used; or data of other tasks.
        proposer: proposes two good and two bad goals for each state and thought, as in decisions; None: goals are
            states of other trajectories.
        reached: when a goal counts as reached.
        n_triples: approximate number of triples; a proposer is called for a quarter of them.
        embeddings: see `critics.goal.embeddings`; None: the checkpoint's.
        summary: see `critics.goal.summaries`; None: the checkpoint's.
        seed: seed for states and goals.

    Raises:
        ConfigurationError: all goals were reached, or no goal was, or fewer than two tasks are held out.
    """
    return asyncio.run(
        acalibrate_goal(
            folder, episodes, proposer=proposer, reached=reached, n_triples=n_triples, embeddings=embeddings,
            summary=summary, seed=seed,
        )
    )  # fmt: skip


async def acalibrate_goal(
    folder: str | Path,
    episodes: Sequence[Trajectory | Episode],
    *,
    proposer: Proposer | None = None,
    reached: Reached = SAME_GOAL,
    n_triples: int = 4000,
    embeddings: str | TextEmbeddings | Embeddings | None = None,
    summary: str | Callable[[Trajectory], str] | BaseChatModel | Summary | None = None,
    seed: int = 0,
) -> GoalCheckpoint:
    """Async version of `calibrate_goal`."""
    checkpoint, rng = GoalCheckpoint.load(folder), np.random.default_rng(seed)
    embedder = as_embeddings(checkpoint.embeddings if embeddings is None else embeddings)
    describe = as_summary(checkpoint.summary if summary is None else summary, prompt=checkpoint.prompt)
    if describe.spec != checkpoint.summary:
        raise CheckpointError(
            f"{folder} describes states by {quoted(checkpoint.summary)}, but summary is {quoted(describe.spec)}: leave "
            "summary out"
        )
    used = held_out(checkpoint, episodes)
    data = await goal_data(used, describe)
    vectors = (await embedder.embed(data.texts)).vectors
    if proposer is None:
        triples = independent_triples(checkpoint.network, data, vectors, rng, n_triples, reached)
    else:
        triples = await proposed_triples(
            checkpoint.network, data, vectors, used, proposer, embedder, rng, n_triples // 4, reached
        )
    curve, report = calibrated(triples, "independent" if proposer is None else "proposed", reached, rng)
    metrics = {**checkpoint.metrics, "calibration": report.as_plain()}
    calibrated_checkpoint = replace(checkpoint, calibration=curve, metrics=metrics)
    calibrated_checkpoint.save(folder)
    return calibrated_checkpoint


def held_out(checkpoint: GoalCheckpoint, episodes: Sequence[Trajectory | Episode]) -> list[Episode]:
    """Return the held-out tasks of the checkpoint's training data, or all of any other data."""
    every = as_episodes(episodes)
    if data_hash(episode.trajectory for episode in every) != checkpoint.data_hash:
        return every
    share, seed = checkpoint.settings["validation_share"], checkpoint.settings["seed"]
    _, validation = split_by_task(every, share, np.random.default_rng(seed), task_of=task_of_trajectory)
    return validation


def independent_triples(
    network: GoalNetwork,
    data: GoalData,
    vectors: Vectors,
    rng: np.random.Generator,
    n: int,
    reached: Reached,
) -> Triples:
    """Draw goals independently of the trajectory's own future: states of other trajectories.

    They come from the same task if it has other trajectories, because goals in use are goals of the current task;
    otherwise from any task.
    """
    every = np.arange(len(data.at))
    rows, goals = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    while len(rows) < n:
        of_task, has_sibling = siblings(data, rng)
        anywhere = data.goal_text[data.elsewhere(rng, data.at)]
        chosen = rng.permutation(every)[: n - len(rows)]
        rows, goals = np.append(rows, chosen), np.append(goals, np.where(has_sibling, of_task, anywhere)[chosen])
    texts = [data.texts[goal] for goal in goals]
    return _triples(network, data, vectors, rows, texts, vectors[goals], reached)


async def proposed_triples(
    network: GoalNetwork,
    data: GoalData,
    vectors: Vectors,
    episodes: Sequence[Episode],
    proposer: Proposer,
    embeddings: TextEmbeddings,
    rng: np.random.Generator,
    n_states: int,
    reached: Reached,
) -> Triples:
    """Ask the proposer for goals at `n_states` states and thoughts of the data."""
    chosen = np.sort(rng.choice(len(data.at), size=min(n_states, len(data.at)), replace=False))
    steps = [
        (episode.trajectory.prefix(t), thought_of(step))
        for episode in episodes
        for t, step in enumerate(episode.trajectory.steps)
    ]
    proposed = await asyncio.gather(*(proposer.propose(steps[row][0], steps[row][1], 2, 2) for row in chosen))
    goals = [[*each.positive, *each.negative] for each in proposed]
    rows = np.repeat(chosen, [len(each) for each in goals])
    texts = [text for each in goals for text in each]
    embedded = (await embeddings.embed(texts)).vectors
    return _triples(network, data, vectors, rows, texts, embedded, reached)


def calibrated(
    triples: Triples, goals: str, reached: Reached, rng: np.random.Generator
) -> tuple[Calibration, CalibrationReport]:
    """Fit the curve to all triples, and estimate its quality by cross-fitting between two halves of the tasks.

    Raises:
        ConfigurationError: in half of the tasks all goals were reached, or none.
    """
    tasks = rng.permutation(np.unique(triples.task))
    if len(tasks) < 2:
        raise ConfigurationError(
            f"{len(tasks)} tasks are held out, but a calibration needs at least 2: collect more tasks, or hold out more"
        )
    first = np.isin(triples.task, tasks[: len(tasks) // 2])
    after = np.empty(len(triples.q))
    for fitted, evaluated in ((first, ~first), (~first, first)):
        after[evaluated] = fit_calibration(triples.q[fitted], triples.reached[fitted])(triples.q[evaluated])
    bins = {
        name: tuple(reliability(p, triples.reached, triples.task))
        for name, p in {"before": np.clip(triples.q, 0.0, 1.0), "after": after}.items()
    }
    report = CalibrationReport(
        goals=goals,
        label="a judge" if callable(reached) else f"cosine of at least {reached}",
        n_triples=len(triples.q),
        n_tasks=len(tasks),
        reached=float(triples.reached.mean()),
        error_before=calibration_error(bins["before"]),
        error_after=calibration_error(bins["after"]),
        **bins,
    )
    return fit_calibration(triples.q, triples.reached), report


def _triples(
    network: GoalNetwork,
    data: GoalData,
    vectors: Vectors,
    rows: IntArray,
    goals: Sequence[str],
    goal_vectors: Vectors,
    reached: Reached,
) -> Triples:
    """Compute Q and outcome of transitions with goals, without those whose state is already the goal."""
    at = data.at[rows]
    same = reached if callable(reached) else _similar(data, vectors, goals, goal_vectors, reached)
    reached_at: Mapping[int, list[bool]] = {
        row: [same(goal, data.texts[text]) for text in data.goal_text[state : data.last[state] + 1]]
        for row, (state, goal) in enumerate(zip(at, goals, strict=True))
    }
    open_ = np.array([row for row, at_goal in reached_at.items() if not at_goal[0]], dtype=np.int64)
    q = network.q(vectors[data.state_text[at[open_]]], vectors[data.thought_text[rows[open_]]], goal_vectors[open_])
    return Triples(q, np.array([any(reached_at[row]) for row in open_], dtype=bool), data.task[at[open_]])


def _similar(
    data: GoalData, vectors: Vectors, goals: Sequence[str], goal_vectors: Vectors, least: float
) -> Callable[[str, str], bool]:
    """Build a function: (goal, state's name) -> whether they are equal or similar."""
    unit = {text: row for text, row in zip(data.texts, _unit(vectors), strict=True)}
    unit_goal = dict(zip(goals, _unit(goal_vectors), strict=True))
    return lambda goal, state: goal == state or float(unit_goal[goal] @ unit[state]) >= least


def _unit(vectors: Vectors) -> Vectors:
    unit: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return unit
