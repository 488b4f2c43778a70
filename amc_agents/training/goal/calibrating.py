"""Quality of a goal critic on held-out tasks: metrics, and the calibration of Q to a probability.

The metrics ask whether Q separates reached goals from goals that were not reached. A calibration needs the outcomes of
(state, thought, goal) triples. Their goals must not come from a trajectory's own future: those are all reached, and Q,
trained on them, is optimistic in stochastic worlds. So goals come from other trajectories (of the same task, if it has
others), or from the proposer that is used for decisions. A goal counts as reached if a later state of the same
trajectory has the same name, or is similar enough in meaning, or if a judge says so. A truncated trajectory counts only
as far as it was observed.
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

from amc_agents.critics.goal.checkpoint import Calibration, GoalCheckpoint, GoalNetwork, fit_calibration
from amc_agents.critics.goal.critic import Summary, as_summary
from amc_agents.critics.goal.embeddings import TextEmbeddings, Vectors, as_embeddings
from amc_agents.critics.reliability import Bin, calibration_error, reliability
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.pnlc.types import Proposer
from amc_agents.quoting import quoted
from amc_agents.training.data_checks import split_by_task, task_of_trajectory
from amc_agents.training.dataset import data_hash
from amc_agents.training.goal.transitions import BoolArray, Episode, GoalData, as_episodes, goal_data, thought_of
from amc_agents.training.metrics import auc
from amc_agents.types import FloatArray, IntArray, Trajectory


def evaluate(
    network: GoalNetwork, data: GoalData, vectors: Vectors, discount: float, rng: np.random.Generator
) -> dict[str, Any]:
    """Compute metrics over all transitions, each with a goal of every kind.

    Args:
        network: the critic.
        data: held-out transitions.
        vectors: `[texts, D]` embeddings of `data.texts`.
        discount: gamma, for drawing later goals.
        rng: draws the goals.

    Returns:
        auc: AUC of Q, for goals reached later against unreached states of other trajectories.
        auc_siblings: the same against states of other trajectories of the same task; None if no task has two.
        auc_similarity: the same for the cosine of goal and state in place of Q.
        q_later, q_elsewhere: mean Q of both kinds.
        q_loss: mean squared error against the target of training; transitions, trajectories.
    """
    everything = np.arange(len(data.at))
    later = data.goal_text[data.later(rng, data.at, discount)]
    elsewhere = data.goal_text[data.elsewhere(rng, data.at)]
    related, has_sibling = siblings(data, rng)
    known = _reached_later(data)
    kinds = {"later": (later, np.ones(len(later), dtype=bool))}
    kinds["elsewhere"] = elsewhere, ~known(everything, elsewhere)
    kinds["siblings"] = related, has_sibling & ~known(everything, related)
    # Goals that the state has already reached are left out.
    live = {name: np.flatnonzero(fit & (data.goal_text[data.at] != goal)) for name, (goal, fit) in kinds.items()}
    q = {name: _q(network, data, vectors, live[name], kinds[name][0]) for name in kinds}
    near = {name: _cosine(data, vectors, live[name], kinds[name][0]) for name in kinds}
    return {
        "auc": _auc(q["later"], q["elsewhere"]),
        "auc_siblings": _auc(q["later"], q["siblings"]),
        "auc_similarity": _auc(near["later"], near["elsewhere"]),
        "auc_siblings_similarity": _auc(near["later"], near["siblings"]),
        "q_later": float(np.mean(q["later"])) if len(q["later"]) else None,
        "q_elsewhere": float(np.mean(q["elsewhere"])) if len(q["elsewhere"]) else None,
        "q_loss": _loss(network, data, vectors, np.concatenate([later, elsewhere]), discount),
        "transitions": len(data.at),
        "trajectories": len(np.unique(data.first)),
    }


def _auc(reached: FloatArray, missed: FloatArray) -> float | None:
    return auc(np.concatenate([reached, missed]), np.repeat([1.0, 0.0], [len(reached), len(missed)]))


def _q(network: GoalNetwork, data: GoalData, vectors: Vectors, rows: IntArray, goal: IntArray) -> FloatArray:
    q = np.empty(len(rows))
    for start in range(0, len(rows), _AT_ONCE):
        part = rows[start : start + _AT_ONCE]
        texts = data.state_text[data.at[part]], data.thought_text[part], goal[part]
        q[start : start + _AT_ONCE] = network.q(*(vectors[text] for text in texts))
    return q


def _cosine(data: GoalData, vectors: Vectors, rows: IntArray, goal: IntArray) -> FloatArray:
    lengths = np.linalg.norm(vectors, axis=1)
    states, goals = data.state_text[data.at[rows]], goal[rows]
    product = np.array([vectors[s] @ vectors[g] for s, g in zip(states, goals, strict=True)])
    cosine: FloatArray = product / np.maximum(lengths[states] * lengths[goals], 1e-12)
    return cosine


def _loss(network: GoalNetwork, data: GoalData, vectors: Vectors, goal: IntArray, discount: float) -> float | None:
    """Compute the squared error of Q over each transition with each of its goals (`[k x M]`)."""
    errors = []
    for part in np.split(goal, len(goal) // len(data.at)):
        batch = data.batch(np.arange(len(data.at)), part)
        for start in range(0, len(part), _AT_ONCE):
            chosen = np.arange(start, min(start + _AT_ONCE, len(part)))
            chosen = chosen[batch.kept[chosen] & ~batch.already[chosen]]
            goals = vectors[batch.goal[chosen]]
            to_come = discount * network.v(vectors[batch.next_state[chosen]], goals)
            target = np.where(batch.reached[chosen], 1.0, np.where(batch.ended[chosen], 0.0, to_come))
            q = network.q(vectors[batch.state[chosen]], vectors[batch.thought[chosen]], goals)
            errors.append((q - target) ** 2)
    squared = np.concatenate(errors)
    return float(squared.mean()) if len(squared) else None


def _reached_later(data: GoalData) -> Any:
    """Build a function: (transitions, goals) -> whether the transition's trajectory reaches the goal later."""
    # Last state of each episode at which each goal is reached.
    latest: dict[tuple[int, int], int] = {}
    for state, (first, goal) in enumerate(zip(data.first.tolist(), data.goal_text.tolist(), strict=True)):
        latest[first, goal] = state

    def reached(transitions: IntArray, goals: IntArray) -> BoolArray:
        at = data.at[transitions]
        pairs = zip(data.first[at].tolist(), goals.tolist(), at.tolist(), strict=True)
        return np.array([latest.get((first, goal), -1) > state for first, goal, state in pairs], dtype=bool)

    return reached


def siblings(data: GoalData, rng: np.random.Generator) -> tuple[IntArray, BoolArray]:
    """Draw `[M]` goals from other trajectories of each transition's task; and `[M]` whether the task has others."""
    goals, has_others = np.zeros(len(data.at), dtype=np.int64), np.zeros(len(data.at), dtype=bool)
    for task in np.unique(data.task):
        states = np.flatnonzero(data.task == task)
        for row in np.flatnonzero(data.task[data.at] == task):
            others = states[data.first[states] != data.first[data.at[row]]]
            if len(others):
                goals[row], has_others[row] = data.goal_text[rng.choice(others)], True
    return goals, has_others


_AT_ONCE = 4096
"""Rows of a matrix product, which bounds memory."""


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
        summary: see `critics.goal.critic`; None: the checkpoint's.
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
