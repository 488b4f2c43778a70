"""A node that plays a task with a population."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import MessagesState
from langgraph.runtime import Runtime

from amc_agents import AmcGraph
from amc_agents.errors import ConfigurationError
from shared.tasks import Context, explained, opening


def population(particles: AmcGraph) -> Callable[..., Any]:
    """Build a node that plays a task with a population, and adds the best particle's messages and a summary."""

    async def play(state: MessagesState, config: RunnableConfig, runtime: Runtime[Context]) -> dict[str, Any]:
        try:
            given = {"messages": opening(state)}
            async for event in particles.astream(given, config, context=runtime.context or {}, stream_mode="custom"):
                runtime.stream_writer(event)  # The progress of the search; the last event is the run.
        except ConfigurationError as error:
            return explained(error)
        run = event["run"]
        returns = [trajectory.return_ for trajectory in run.population.trajectories]
        crafted = sum(return_ > 0 for return_ in returns)
        values = run.usage["critic"].calls if "critic" in run.usage else 0
        critic = run.config["critic"]
        refilled = sum(len(point.retired) for point in run.history)
        more = f" {refilled} of them continue others in the slots of finished ones." if refilled else ""
        told = f"{crafted} of {len(returns)} particles crafted it; {critic} computed {values} values.{more}"
        return {"messages": [*run.best_output["messages"], AIMessage(told)]}

    return play
