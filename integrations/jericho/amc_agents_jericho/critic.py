"""A progress critic for the generated games: the score so far, discounted by wounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents.types import FloatArray, Trajectory

WOUND = "wounds you"
FATAL_WOUNDS = 3


class KeepProgress:
    """Predicts that a trajectory earns once more what it has earned, times the share of wounds that it can still take.

    It reads observed rewards and observations only, and is not trained.
    """

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predicted future returns, from 0 to 1."""
        return np.array([_value(trajectory) for trajectory in trajectories])


def _value(trajectory: Trajectory) -> float:
    wounds = sum(WOUND in step.observation for step in trajectory.steps)
    return max(trajectory.return_, 0.0) * max(1.0 - wounds / FATAL_WOUNDS, 0.0)
