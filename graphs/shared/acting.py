"""The tool of the agents that call tools, and a critic of its results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain_core.tools import tool

from amc_agents import Trajectory, current_environment, effect


@tool
@effect("world")
async def act(command: str) -> str:
    """Execute a command of the crafting world, such as `get 2 clay`."""
    return (await current_environment().step(command)).observation


class FewFailures:
    """Halves the predicted return at each failed command."""

    async def values(self, trajectories: Sequence[Trajectory]) -> Any:
        """`[N]` predicted returns."""
        return np.array([0.5 ** sum("Could not" in step.observation for step in t.steps) for t in trajectories])
