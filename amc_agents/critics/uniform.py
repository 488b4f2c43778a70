"""The critic that knows nothing: with it, weights follow the rewards seen alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage


class UniformCritic:
    """f = 0 for every trajectory."""

    def __init__(self) -> None:
        self.usage = Usage()

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` zeros."""
        return np.zeros(len(trajectories))
