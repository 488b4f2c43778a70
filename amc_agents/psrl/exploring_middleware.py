"""What the middlewares of PSRL and IDS have in common: an agent's run is an episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from amc_agents.psrl.conversation.options import Place, in_sync
from amc_agents.runtime.deciding_model import Record

Answer = ModelResponse[Any] | AIMessage


class ExploringMiddleware(AgentMiddleware[Any, Any, Any]):
    """Begins an episode with the agent's run, keeps what it sees, and learns from it."""

    channel: ClassVar[str]
    """Of the state, where the episode is."""

    @property
    @abstractmethod
    def explorer(self) -> Any:
        """The method's `amc_agents.psrl.conversation.explorer.Explorer`, with `start`."""

    def before_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Begin; what died before is learnt."""
        return in_sync(runtime, lambda place: self._start(state, place))

    async def abefore_agent(self, state: Any, runtime: Any) -> dict[str, Any]:
        """Begin; what died before is learnt."""
        return await self._start(state, Place(runtime))

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Keep what the tools have answered."""
        return in_sync(runtime, lambda place: self._observe(state, place))

    async def abefore_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Keep what the tools have answered."""
        return await self._observe(state, Place(runtime))

    def after_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Learn."""
        return in_sync(runtime, lambda place: self._end(state, place))

    async def aafter_agent(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        """Learn."""
        return await self._end(state, Place(runtime))

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Where a tool's error ends the run, the next one learns from this episode."""
        with self._mourning(request.state):
            return handler(request)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Where a tool's error ends the run, the next one learns from this episode."""
        with self._mourning(request.state):
            return await handler(request)

    async def _start(self, state: Any, place: Place) -> dict[str, Any]:
        return {self.channel: await self.explorer.start(state.get(self.channel), state["messages"], place)}

    async def _observe(self, state: Any, place: Place) -> dict[str, Any] | None:
        episode = state[self.channel]
        now = await self.explorer.observe(episode, state["messages"], place)
        return None if now is episode else {self.channel: now}

    async def _end(self, state: Any, place: Place) -> dict[str, Any]:
        return {self.channel: await self.explorer.end(state[self.channel], state["messages"], place)}

    @contextmanager
    def _mourning(self, state: Any) -> Iterator[None]:
        """Note that the episode is dead where an error comes out; a pause for a human is none."""
        try:
            yield
        except GraphBubbleUp:
            raise
        except BaseException:
            self.explorer.died(_episode(state, self.channel))
            raise


def _episode(state: Any, channel: str) -> Record | None:
    return state.get(channel) if isinstance(state, dict) else getattr(state, channel, None)


def episode_in(request: ModelRequest[Any], channel: str) -> Record:
    """The episode that a model call belongs to."""
    episode: Record = request.state[channel]  # type: ignore[literal-required]
    return episode
