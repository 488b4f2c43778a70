"""Verdicts on the actions of a trajectory, summed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents.types import FloatArray
from reproduce.dose.draws import Node
from reproduce.dose.lockstep import Judge
from reproduce.dose.playing import past

_CLEAR = 1e-6
"""Probabilities are kept away from 0 and 1 by this much."""


class Summed:
    """A critic that adds up the log-odds of a value model after each action so far (`lockstep.Judge`).

    In a deterministic world, the value after an action is the Q of that action. States are compared at the same step,
    so the mean would rank them alike.

    Args:
        critic: predicts the probability of success.
    """

    def __init__(self, critic: Judge) -> None:
        self._critic = critic

    async def values(self, nodes: Sequence[Node]) -> FloatArray:
        """`[N]` sums, which are no returns: they rank states of the same step."""
        paths = [list(past(node))[1:] for node in nodes]
        values = await self._critic.values([node for path in paths for node in path])
        chances = np.clip(values, _CLEAR, 1 - _CLEAR)
        verdicts = np.split(np.log(chances / (1 - chances)), np.cumsum([len(path) for path in paths])[:-1])
        return np.array([part.sum() for part in verdicts])
