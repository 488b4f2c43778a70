"""AMC around a tool-calling agent of `create_agent`: its tool acts in the particle's world, which is forked with it.

The package's model writes its commands as text, which a middleware turns into tool calls. A model named by `AMC_MODEL`
calls the tool itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain.agents import create_agent
from langchain_core.tools import tool
from shared.commands_as_calls import CommandsAsCalls
from shared.models import OWN_MODEL, RULES, chat_model
from shared.population import population
from shared.tasks import HORIZON, crafting_world, served

from amc_agents import AtSteps, Trajectory, amc, current_environment, effect


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


agent = create_agent(chat_model(0.7), [act], middleware=[] if OWN_MODEL else [CommandsAsCalls()],
                     system_prompt=RULES if OWN_MODEL else None)  # fmt: skip
particles = amc(agent, "few-failures", critics={"few-failures": FewFailures(), "uniform": "uniform"}, n_particles=15,
                resample=AtSteps(4, 8), beta=0.1, horizon=HORIZON, environment=crafting_world)  # fmt: skip
graph = served("react_agent", population(particles))
