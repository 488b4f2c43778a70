"""Wrap a `create_agent` agent with tools: its particles act in worlds of their own, and are resampled half-way.

The model here is a stand-in: a rule that slips one time in three, so that the example runs without a key. In its
place goes your own chat model, `init_chat_model("provider:model")`; the rest stays as it is.
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
    """Carry out a command of the crafting world, such as `get 2 clay`."""
    return (await current_environment().step(command)).observation


def respond(messages):
    """The stand-in for a model: the right command, or one time in three a wrong one."""
    rng = particle_rng() or np.random.default_rng()
    steps_made = sum(isinstance(message, ToolMessage) and "Could not" not in message.text for message in messages)
    if steps_made == len(WAY):
        return "It is made."
    command = "get 1 moonlight" if rng.random() < 1 / 3 else WAY[steps_made]
    return AIMessage("", tool_calls=[{"name": "act", "args": {"command": command}, "id": f"call-{len(messages)}"}])


class FewFailures:
    """A critic of one's own: the more commands have failed, the less a trajectory will earn."""

    async def values(self, trajectories):
        """`[N]` the return that each will still earn."""
        failures = [sum("Could not" in step.observation for step in one.steps) for one in trajectories]
        return 0.5 ** np.array(failures, dtype=np.float64)


if __name__ == "__main__":
    agent = create_agent(ScriptedChatModel(respond=respond), [act])
    better = amc(agent, critic=FewFailures(), n_particles=15, resample=AtSteps(5), beta=0.2, horizon=9, seed=0,
                 environment=lambda state: (CraftingWorld(), TASK))  # fmt: skip
    run = better.run({"messages": [("user", TASK.instruction)]})
    returns = [one.return_ for one in run.population.trajectories]
    print(f"best return {max(returns):g}, mean of the particles {np.mean(returns):.2f}")
    print("ancestors at step 5:", run.history[0].ancestors.tolist())
    print("\n".join(f"{step.action}  ->  {step.observation}" for step in run.best.steps))
