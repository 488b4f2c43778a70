"""Metrics of a goal critic on held-out tasks: does Q separate reached goals from goals that were not reached?"""

from __future__ import annotations

from typing import Any

import numpy as np

from amc_agents.critics.goal.checkpoint import GoalNetwork
from amc_agents.critics.goal.embeddings import Vectors
from amc_agents.training.goal.data import BoolArray, GoalData
from amc_agents.training.value.metrics import auc
from amc_agents.types import FloatArray, IntArray


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
