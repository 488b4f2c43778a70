"""A node that plays a task with a single agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from amc_agents import use_environment
from amc_agents.errors import ConfigurationError
from amc_agents.runtime.text_agent import TextAgentState, world_node
from shared.tasks import HORIZON, Context, crafting_world, explained, opening


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
            given = {"messages": opening(state), "done": False}
            world, task = crafting_world(given)
            await world.reset(task)
            with use_environment(world):
                limited = {**config, "recursion_limit": 2 * HORIZON + 1}
                output = await agent.ainvoke(given, limited, context=runtime.context)
                return {"messages": output["messages"]}
        except ConfigurationError as error:
            return explained(error)

    return play


def _after_world(state: TextAgentState) -> Literal["model", "__end__"]:
    turns = sum(message.type == "ai" for message in state["messages"])
    return END if state["done"] or turns >= HORIZON else "model"  # type: ignore[return-value]
