"""Value iteration over a finite horizon, for tabular worlds. `S` states, `A` actions, `H` steps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from amc_agents.types import FloatArray


class Plan(NamedTuple):
    """The optimal values of a tabular world."""

    values: FloatArray
    """`[H + 1, S]` V*_h(s), the optimal expected return from step h on; the last row is 0."""
    q_values: FloatArray
    """`[H, S, A]` Q*_h(s, a)."""


def plan(transitions: FloatArray, rewards: FloatArray, horizon: int) -> Plan:
    """Backward induction: Q_h(s, a) = R(s, a) + sum over s' of T(s' | s, a) V_h+1(s').

    Args:
        transitions: `[S, A, S]` probabilities of the next state.
        rewards: `[S, A]` expected rewards.
        horizon: H, the number of steps of an episode.
    """
    n_states, n_actions = rewards.shape
    values = np.zeros((horizon + 1, n_states))
    q_values = np.empty((horizon, n_states, n_actions))
    for h in reversed(range(horizon)):
        q_values[h] = rewards + transitions @ values[h + 1]
        values[h] = q_values[h].max(axis=-1)
    return Plan(values, q_values)
