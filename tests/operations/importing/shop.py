"""An agent of a shop in production: it asks tools, answers, and is wrapped by `amc` for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage, convert_to_openai_messages
from langchain_core.tools import tool

from amc_agents import amc
from amc_agents.critics.render import DIALOGUE
from amc_agents.smc import Never
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Trajectory

PROMPT = "You work in a lamp shop. Never be rude."


@tool
def stock(item: str) -> str:
    """Count an item."""
    return f"3 x {item}" if "lamp" in item.lower() else f"no {item}"


@tool
def price(item: str, currency: str = "EUR") -> str:
    """Look up a price."""
    return f"{item}: 12.50 {currency}\nincluding tax"


def respond(messages: Sequence[BaseMessage]) -> AIMessage:
    """Two parallel calls with a thought, then a call without one, then the answer; "crash" asks for nothing else."""
    question = [message for message in messages if isinstance(message, HumanMessage)][-1].text
    since = messages[max(at for at, message in enumerate(messages) if isinstance(message, HumanMessage)) + 1 :]
    answers = sum(isinstance(message, ToolMessage) for message in since)
    if question == "hello":
        return AIMessage("Thought: a greeting\nAction: Hello! What do you need?")
    if not answers:
        return AIMessage(
            f"I check the stock of “{question}”.",
            tool_calls=[_call("stock", 1, item=question), _call("price", 2, item=question, currency="SEK")],
        )
    if answers == 2 or question == "for ever":
        return AIMessage("", tool_calls=[_call("price", 3 + answers, item="Lämpchen")])
    return AIMessage(f"We have {question} for 12.50 EUR.")


def _call(name: str, number: int, **args: Any) -> Any:
    return {"name": name, "args": args, "id": f"call-{number}", "type": "tool_call"}


def shop_agent(**settings: Any) -> Any:
    """The agent as it runs in production."""
    model = ScriptedChatModel(respond=respond)
    return create_agent(model, [stock, price], system_prompt=PROMPT, name="shop", **settings)


def seen_by_a_run(messages: Sequence[Any], **settings: Any) -> Trajectory:
    """What the critic of an `amc` run of the same agent reads at its end."""
    graph = amc(shop_agent(**settings), critic="uniform", n_particles=1, resample=Never(), stateless_tools=True)
    return graph.run({"messages": list(messages)}).population.trajectories[0]


def texts(trajectory: Trajectory) -> list[str]:
    """The exact texts that a critic is given for every state."""
    return list(DIALOGUE.segments(trajectory))


def openai_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """The conversation as sent to an OpenAI-style endpoint, with the agent's prompt."""
    return [{"role": "system", "content": PROMPT}, *convert_to_openai_messages(list(messages))]
