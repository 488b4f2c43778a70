"""The critic of constant value 0: weights follow the observed rewards alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from amc_agents.critics.options import allow
from amc_agents.errors import CriticSpecError
from amc_agents.quoting import quoted
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage


def from_spec(target: str, options: Mapping[str, str]) -> UniformCritic:
    """The critic of `uniform`. Raises `CriticSpecError`."""
    allow("uniform", options)
    if target:
        raise CriticSpecError(f"uniform takes no target, got {quoted(target)}")
    return UniformCritic()


class UniformCritic:
    """f = 0 for every trajectory."""

    def __init__(self) -> None:
        self.usage = Usage()

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[N]` zeros."""
        return np.zeros(len(trajectories))
