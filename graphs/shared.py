"""What the graphs share: models, tasks in the user's words, and nodes that play them.

Environment variables choose other models than the package's: `AMC_MODEL=openai:gpt-5-mini` (any chat model of
`init_chat_model`) and `AMC_CRITIC=vllm:http://127.0.0.1:8000` (any critic string).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, Literal, NotRequired

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from typing_extensions import TypedDict

from amc_agents import AmcGraph, Task, use_environment
from amc_agents.envs.crafting import CraftingWorld, generate_task
from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.text_agent import TextAgentState, world_node

CRITICS = {"embedded:crafting": "embedded:crafting", "uniform": "uniform"}
"""Critics that a run may name in its context; any other string is refused."""
CRITIC = None if "AMC_CRITIC" in os.environ else "embedded:crafting"
"""The critic of a run that names none; None stands for the critic that AMC_CRITIC names."""
HORIZON = 20
RULES = """Play a crafting world: one thought and one command per turn, in the form
Thought: what is needed next
Action: the command
Commands: `get 2 clay` for items that no recipe makes, a listed crafting command word for word, `inventory`."""


class Context(TypedDict):
    """Settings of a run."""

    critic: NotRequired[Literal["embedded:crafting", "uniform"]]


def chat_model(temperature: float) -> BaseChatModel:
    """Return the model that `AMC_MODEL` names, else the package's."""
    if name := os.environ.get("AMC_MODEL"):
        from langchain.chat_models import init_chat_model

        return init_chat_model(name, temperature=temperature)
    model = EmbeddedChatModel(temperature=temperature)
    model.invoke("hello")  # Load the weights now, not inside the server's event loop.
    return model


def crafting_world(state: Any) -> tuple[CraftingWorld, Task]:
    """Return the world and the task of a particle's input."""
    return CraftingWorld(), parse_instruction(state["messages"][-1].text)


def served(name: str, play: Callable[..., Any]) -> Any:
    """Build the graph of a run, in which `play` answers to the user's last message."""
    return StateGraph(MessagesState, Context).add_node("play", play).add_edge(START, "play").compile(name=name)


def population(particles: AmcGraph) -> Callable[..., Any]:
    """Build a node that plays a task with a population, and adds the best particle's messages and a summary."""

    async def play(state: MessagesState, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, Any]:
        try:
            run = await particles.arun({"messages": _opening(state)}, config, context=runtime.context or {})
        except ConfigurationError as error:
            return _explained(error)
        returns = [trajectory.return_ for trajectory in run.population.trajectories]
        crafted = sum(return_ > 0 for return_ in returns)
        values = run.usage["critic"].calls if "critic" in run.usage else 0
        critic = run.config["critic"]
        summary = AIMessage(f"{crafted} of {len(returns)} particles crafted it; {critic} computed {values} values.")
        return {"messages": [*run.best_output["messages"], summary]}

    return play


def single(turn: Runnable[Any, Any]) -> Callable[..., Any]:
    """Build a node that plays a task with a single agent, whose turns `turn` adds, in a world of its own."""
    loop = StateGraph(TextAgentState, Context)
    loop.add_node("model", turn)
    loop.add_node("tools", world_node())
    loop.add_edge(START, "model")
    loop.add_edge("model", "tools")
    loop.add_conditional_edges("tools", _after_world)
    agent: Any = loop.compile()

    async def play(state: MessagesState, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, Any]:
        try:
            opening = _opening(state)
            world, task = crafting_world({"messages": opening})
            await world.reset(task)
            with use_environment(world):
                limited = {**config, "recursion_limit": 2 * HORIZON + 1}
                output = await agent.ainvoke({"messages": opening, "done": False}, limited, context=runtime.context)
                return {"messages": output["messages"]}
        except ConfigurationError as error:
            return _explained(error)

    return play


def _after_world(state: TextAgentState) -> Literal["model", "__end__"]:
    turns = sum(message.type == "ai" for message in state["messages"])
    return END if state["done"] or turns >= HORIZON else "model"  # type: ignore[return-value]


def _opening(state: MessagesState) -> list[AnyMessage]:
    text = state["messages"][-1].text
    numbered = re.fullmatch(r"(?:task\s*)?([0-9]{1,9})", text.strip(), re.IGNORECASE)
    task = generate_task(int(numbered[1]), "play", optimal_steps=(4, 9)) if numbered else parse_instruction(text)
    # The package's model was trained without a system prompt.
    rules: list[AnyMessage] = [SystemMessage(RULES)] if "AMC_MODEL" in os.environ else []
    return [*rules, HumanMessage(task.instruction)]


def _explained(error: ConfigurationError) -> dict[str, Any]:
    return {"messages": [AIMessage(f"Send `task 7` or paste a task; critics: {', '.join(CRITICS)}. ({error})")]}
