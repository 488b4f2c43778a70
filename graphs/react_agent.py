"""AMC around a tool-calling agent of `create_agent`: its tool acts in the particle's world, which is forked with it.

The package's model writes its commands as text, which a middleware turns into tool calls. A model named by `AMC_MODEL`
calls the tool itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from shared import HORIZON, RULES, chat_model, crafting_world, population, served

from amc_agents import AtSteps, Trajectory, amc, current_environment, effect
from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.messages import turn_of


@tool
@effect("world")
async def act(command: str) -> str:
    """Execute a command of the crafting world, such as `get 2 clay`."""
    return (await current_environment().step(command)).observation


class CommandsAsCalls(AgentMiddleware):
    """Lets a model that writes `Action: ...` call the tool `act`, and shows it the results as text."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Translate the conversation for the model, and its answer for the agent."""
        texts = [HumanMessage(m.text) if isinstance(m, ToolMessage) else m.model_copy(update={"tool_calls": []})
                 for m in request.messages]  # fmt: skip
        if f"Crafted {goal(texts[0])}" in re.sub(r"[0-9]+ minecraft:", "", texts[-1].text):
            return ModelResponse(result=[AIMessage("It is made.")])
        answer = (await handler(request.override(messages=texts, tools=[]))).result[0]
        call = {"name": "act", "args": {"command": turn_of(answer)[1]}, "id": f"call-{len(texts)}"}
        return ModelResponse(result=[AIMessage(answer.text, id=answer.id, tool_calls=[call])])


def goal(message: AnyMessage) -> str:
    return str(parse_instruction(message.text).payload.goal).replace(" ", "_")


class FewFailures:
    """Halves the predicted return at each failed command."""

    async def values(self, trajectories: Sequence[Trajectory]) -> Any:
        """`[N]` predicted returns."""
        return np.array([0.5 ** sum("Could not" in step.observation for step in t.steps) for t in trajectories])


own = "AMC_MODEL" in os.environ
agent = create_agent(chat_model(0.7), [act], middleware=[] if own else [CommandsAsCalls()],
                     system_prompt=RULES if own else None)  # fmt: skip
particles = amc(agent, "few-failures", critics={"few-failures": FewFailures(), "uniform": "uniform"}, n_particles=15,
                resample=AtSteps(4, 8), beta=0.1, horizon=HORIZON, environment=crafting_world)  # fmt: skip
graph = served("react_agent", population(particles))
