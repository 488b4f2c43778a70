"""Lets the package's model, which writes text, call a tool."""

from __future__ import annotations

import re
from typing import Any

from langchain.agents.middleware import AgentMiddleware, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage

from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.messages import turn_of


class CommandsAsCalls(AgentMiddleware):
    """Lets a model that writes `Action: ...` call the tool `act`, and shows it the results as text."""

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        """Translate the conversation for the model, and its answer for the agent."""
        texts = [HumanMessage(m.text) if isinstance(m, ToolMessage) else m.model_copy(update={"tool_calls": []})
                 for m in request.messages]  # fmt: skip
        if f"Crafted {_goal(texts[0])}" in re.sub(r"[0-9]+ minecraft:", "", texts[-1].text):
            return ModelResponse(result=[AIMessage("It is made.")])
        # A deep agent adds a system prompt of its own, which the package's model was not trained with.
        plain = request.override(messages=texts, tools=[], system_message=None)
        answer = (await handler(plain)).result[0]
        call = {"name": "act", "args": {"command": turn_of(answer)[1]}, "id": f"call-{len(texts)}"}
        return ModelResponse(result=[AIMessage(answer.text, id=answer.id, tool_calls=[call])])


def _goal(message: AnyMessage) -> str:
    return str(parse_instruction(message.text).payload.goal).replace(" ", "_")
