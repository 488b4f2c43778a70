"""A middleware that adds a particle's changes to its final state, for callers that do not get the winner's world."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NotRequired

from langchain.agents.middleware import AgentMiddleware, AgentState
from langgraph.runtime import Runtime

from amc_agents.envs import DirectoryFork
from amc_agents_deepagents.backend import particle_directory


class DiffState(AgentState[Any]):
    """The agent's state with the changes in its folder."""

    diff: NotRequired[str]
    """The changes as a unified diff, as of `DirectoryFork.diff`."""


class RecordDiff(AgentMiddleware[DiffState, Any, Any]):
    """Store the particle's changes as `diff` in the state when the agent ends, so that the caller gets the winner's.

    A particle that a limit stops before its end has no `diff`.

    Args:
        world: returns the calling particle's folder, as of `ForkingBackend`.
    """

    state_schema = DiffState

    def __init__(self, world: Callable[[], DirectoryFork] = particle_directory) -> None:
        super().__init__()
        self._world = world

    def after_agent(self, state: DiffState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Return the changes as an update of the state."""
        return {"diff": self._world().diff()}

    async def aafter_agent(self, state: DiffState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Return the changes as an update of the state."""
        return await asyncio.to_thread(self.after_agent, state, runtime)
