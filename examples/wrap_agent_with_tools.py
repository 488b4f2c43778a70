"""Wrap a `create_agent` agent with tools: each particle acts in its own world, and they are resampled half-way.

This example needs no key: a rule that errs one time in three replaces the chat model. Use your own model instead,
`init_chat_model("provider:model")`; the rest stays the same.
"""

from __future__ import annotations

import numpy as np
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents import AtSteps, amc, current_environment, effect
from amc_agents.envs.crafting import CraftingWorld, generate_task, plan
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

TASK = generate_task(0, "examples", optimal_steps=(8, 8))
WAY = plan(TASK.payload.book, TASK.payload.goal)


@tool
@effect("world")
async def act(command: str) -> str:
    """Execute a command of the crafting world, such as `get 2 clay`."""
    return (await current_environment().step(command)).observation


def respond(messages):
    """Answer with the right command, or one time in three with a wrong one."""
    rng = particle_rng() or np.random.default_rng()
    steps_made = sum(isinstance(message, ToolMessage) and "Could not" not in message.text for message in messages)
    if steps_made == len(WAY):
        return "It is made."
    command = "get 1 moonlight" if rng.random() < 1 / 3 else WAY[steps_made]
    return AIMessage("", tool_calls=[{"name": "act", "args": {"command": command}, "id": f"call-{len(messages)}"}])


class FewFailures:
    """A custom critic: the more commands have failed, the lower the predicted return."""

    async def values(self, trajectories):
        """`[N]` predicted future returns."""
        failures = [sum("Could not" in step.observation for step in path.steps) for path in trajectories]
        return 0.5 ** np.array(failures, dtype=np.float64)


if __name__ == "__main__":
    agent = create_agent(ScriptedChatModel(respond=respond), [act])
    better = amc(agent, critic=FewFailures(), n_particles=15, resample=AtSteps(5), beta=0.2, horizon=9, seed=0,
                 environment=lambda state: (CraftingWorld(), TASK))  # fmt: skip
    run = better.run({"messages": [("user", TASK.instruction)]})
    returns = [trajectory.return_ for trajectory in run.population.trajectories]
    print(f"best return {max(returns):g}, mean of the particles {np.mean(returns):.2f}")
    print("ancestors at step 5:", run.history[0].ancestors.tolist())
    print("\n".join(f"{step.action}  ->  {step.observation}" for step in run.best.steps))
