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
            run = await particles.arun({"messages": opening(state)}, config, context=runtime.context or {})
        except ConfigurationError as error:
            return explained(error)
        returns = [trajectory.return_ for trajectory in run.population.trajectories]
        crafted = sum(return_ > 0 for return_ in returns)
        values = run.usage["critic"].calls if "critic" in run.usage else 0
        critic = run.config["critic"]
        summary = AIMessage(f"{crafted} of {len(returns)} particles crafted it; {critic} computed {values} values.")
        return {"messages": [*run.best_output["messages"], summary]}

    return play
