"""Makes a probability of a goal critic's Q: what really became of held-out (state, thought, goal) triples.

Goals must not be picked from a trajectory's own future: such are all reached, and Q, which learned from them, is
optimistic wherever luck plays a part. So they are those of other trajectories (of the same task, where it has others),
or those of whoever proposes goals when decisions are made. A goal counts as reached where a later state of the same
trajectory is called the same, is as near to it in meaning as a threshold says, or where a judge says so; a trajectory
that was cut counts as far as it was seen.
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
from amc_agents.training.dataset import data_hash
from amc_agents.training.goal.data import BoolArray, Episode, GoalData, goal_data, thought_of
from amc_agents.training.goal.metrics import siblings
from amc_agents.training.value.data import split_by_task
from amc_agents.types import FloatArray, IntArray, Trajectory

Reached = float | Callable[[str, str], bool]
"""When a goal is reached: least cosine with what the state is called as a goal, or a judge of (goal, that name)."""

SAME_GOAL = 0.95
"""Least cosine at which two goals count as the same, where nothing else is said."""


class Triples(NamedTuple):
    """`[n]` states, thoughts and goals of held-out trajectories, and what became of the goals."""

    q: FloatArray
    """Of the critic, not calibrated."""
    reached: BoolArray
    task: IntArray
    """Number of the task."""


@dataclass(frozen=True)
class CalibrationReport:
    """How well a critic's probabilities hold, on tasks that they were not fitted on."""

    goals: str
    """Where the goals came from: "independent" or "proposed"."""
    label: str
    """When a goal counted as reached."""
    n_triples: int
    n_tasks: int
    reached: float
    """Share of all triples whose goal was reached."""
    before: tuple[Bin, ...]
    """Reliability of Q itself, cut to [0, 1]."""
    after: tuple[Bin, ...]
    """Reliability of the probability; each half of the tasks judged by the curve of the other half."""
    error_before: float
    """Expected calibration error of Q."""
    error_after: float
    """Expected calibration error of the probability."""

    def as_plain(self) -> dict[str, Any]:
        """As JSON values."""
        bins = {name: [one._asdict() for one in getattr(self, name)] for name in ("before", "after")}
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
    """Calibrates a trained critic anew, and saves it with the curve and its report (`metrics["calibration"]`).

    Args:
        folder: what `amc train goal` wrote.
        episodes: the data that it was trained on, of which the held-out tasks are taken; or other tasks altogether.
        proposer: who proposes goals when decisions are made, two good and two bad ones for each state and thought;
            None: states of other trajectories.
        reached: when a goal counts as reached.
        n_triples: about so many; a proposer is asked for a quarter of it.
        embeddings: see `critics.embeddings`; None: those that the checkpoint names.
        summary: see `critics.summaries`; None: the one that the checkpoint names.
        seed: draws states and goals.

    Raises:
        ConfigurationError: all goals were reached, or none, or fewer than two tasks are held out.
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
    """`calibrate_goal` where an event loop runs already."""
    checkpoint, rng = GoalCheckpoint.load(folder), np.random.default_rng(seed)
    embedder = as_embeddings(checkpoint.embeddings if embeddings is None else embeddings)
    describe = as_summary(checkpoint.summary if summary is None else summary, prompt=checkpoint.prompt)
    if describe.spec != checkpoint.summary:
        raise CheckpointError(f"{folder} describes states by {checkpoint.summary!r}, and was given {describe.spec!r}")
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
    found = replace(checkpoint, calibration=curve, metrics={**checkpoint.metrics, "calibration": report.as_plain()})
    found.save(folder)
    return found


def held_out(checkpoint: GoalCheckpoint, episodes: Sequence[Trajectory | Episode]) -> list[Episode]:
    """Of the data of its training, the tasks that were held out; of other data all."""
    every = [one if isinstance(one, Episode) else Episode(one) for one in episodes]
    trajectories = [one.trajectory for one in every]
    if data_hash(trajectories) != checkpoint.data_hash:
        return every
    of = {id(one.trajectory): one for one in every}
    share, seed = checkpoint.settings["validation_share"], checkpoint.settings["seed"]
    _, validation = split_by_task(trajectories, share, np.random.default_rng(seed))
    return [of[id(one)] for one in validation]


def independent_triples(
    network: GoalNetwork,
    data: GoalData,
    vectors: Vectors,
    rng: np.random.Generator,
    n: int,
    reached: Reached,
) -> Triples:
    """Goals drawn without a look at the trajectory's own future: states of other trajectories.

    Of the same task where it has others, for what is asked at work are goals of the task at hand; else of any.
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
    """Goals of whoever proposes them when decisions are made, at `n_states` states and thoughts of the data."""
    chosen = np.sort(rng.choice(len(data.at), size=min(n_states, len(data.at)), replace=False))
    steps = [
        (one.trajectory.prefix(t), thought_of(step)) for one in episodes for t, step in enumerate(one.trajectory.steps)
    ]
    proposed = await asyncio.gather(*(proposer.propose(steps[row][0], steps[row][1], 2, 2) for row in chosen))
    goals = [[*one.positive, *one.negative] for one in proposed]
    rows = np.repeat(chosen, [len(one) for one in goals])
    texts = [text for one in goals for text in one]
    embedded = (await embeddings.embed(texts)).vectors
    return _triples(network, data, vectors, rows, texts, embedded, reached)


def calibrated(
    triples: Triples, goals: str, reached: Reached, rng: np.random.Generator
) -> tuple[Calibration, CalibrationReport]:
    """The curve of all triples, and how well such a curve holds on tasks that it was not fitted on.

    Raises:
        ConfigurationError: a half of the tasks has no goal that was reached, or none that was not.
    """
    tasks = rng.permutation(np.unique(triples.task))
    if len(tasks) < 2:
        raise ConfigurationError(f"{len(tasks)} tasks are held out, and a calibration needs 2: one to try it on")
    first = np.isin(triples.task, tasks[: len(tasks) // 2])
    after = np.empty(len(triples.q))
    for fitted, tried in ((first, ~first), (~first, first)):
        after[tried] = fit_calibration(triples.q[fitted], triples.reached[fitted])(triples.q[tried])
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
    """Q and outcome of transitions with goals; without those whose state is the goal already, which are no question."""
    at = data.at[rows]
    same = reached if callable(reached) else _similar(data, vectors, goals, goal_vectors, reached)
    met: Mapping[int, list[bool]] = {
        row: [same(goal, data.texts[text]) for text in data.goal_text[state : data.last[state] + 1]]
        for row, (state, goal) in enumerate(zip(at, goals, strict=True))
    }
    open_ = np.array([row for row, found in met.items() if not found[0]], dtype=np.int64)
    q = network.q(vectors[data.state_text[at[open_]]], vectors[data.thought_text[rows[open_]]], goal_vectors[open_])
    return Triples(q, np.array([any(met[row]) for row in open_], dtype=bool), data.task[at[open_]])


def _similar(
    data: GoalData, vectors: Vectors, goals: Sequence[str], goal_vectors: Vectors, least: float
) -> Callable[[str, str], bool]:
    """Whether a goal and a state's name are the same words, or near in meaning."""
    unit = {text: row for text, row in zip(data.texts, _unit(vectors), strict=True)}
    unit_goal = dict(zip(goals, _unit(goal_vectors), strict=True))
    return lambda goal, state: goal == state or float(unit_goal[goal] @ unit[state]) >= least


def _unit(vectors: Vectors) -> Vectors:
    found: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return found
