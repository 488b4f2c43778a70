"""Show the answer's runs of models, tools and nodes to the readers of `astream_events` and `astream_log`.

LangChain would show them the runs of all N particles, in whatever order they happen. Each particle records its own
instead, a fork with its past, and at the end of the search those of the answer are shown, in their order.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextvars import copy_context
from copy import copy
from itertools import chain
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.callbacks.manager import ahandle_event
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langgraph.pregel._messages import StreamMessagesHandler

from amc_agents.population.feature import AgentStart, Feature
from amc_agents.population.particle import Particle
from amc_agents.runtime.calls import stream_listeners

T = TypeVar("T")


class AgentEvent(NamedTuple):
    """A call of a callback handler."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class AgentEvents(Feature):
    """Records what happens in the agents of a run, and shows what happened in the answer's.

    Args:
        readers: the handlers behind `astream_events` and `astream_log`.
        everyone: show what happens in all agents, when it happens.
        is_answer: whether a particle is already known to be the answer.
    """

    def __init__(
        self, readers: Sequence[BaseCallbackHandler], *, everyone: bool, is_answer: Callable[[Particle], bool]
    ) -> None:
        self._readers, self._everyone, self._is_answer = [*readers], everyone, is_answer

    async def on_agent_start(self, particle: Particle, start: AgentStart) -> None:
        """Record the particle's next runs, or show them if it is the answer."""
        record = particle.states.setdefault(AgentEvents, [])
        if self._is_answer(particle):
            await self._show(record)
            start.handlers += self._readers
        else:
            start.handlers += self._readers if self._everyone else [_Recorder(record)]

    def on_fork(self, parent: Particle, child: Particle) -> None:
        """Give the child its past."""
        child.states[AgentEvents] = [*(parent.of(AgentEvents) or ())]

    async def on_answer(self, particle: Particle) -> None:
        """Show what happened in the answer's agent."""
        await self._show(particle.of(AgentEvents) or [])

    async def _show(self, record: list[AgentEvent]) -> None:
        """Show the readers what is recorded, and clear it."""
        recorded, record[:] = [*record], []
        for event in recorded:
            await ahandle_event(self._readers, event.name, None, *event.args, **event.kwargs)


class CustomEvents(Feature):
    """Passes what agents write to the custom stream on to that of the outer run, in the context of the calling node.

    Args:
        writer: the outer run's stream writer.
    """

    def __init__(self, writer: Callable[[Any], None]) -> None:
        self._writer, self._context = writer, copy_context()

    async def on_agent_start(self, particle: Particle, start: AgentStart) -> None:
        """Read the agent's custom stream."""
        start.stream_mode.append("custom")

    def on_output(self, particle: Particle, mode: str, chunk: Any) -> None:
        """Pass an event on."""
        if mode == "custom":
            event = {"type": "amc.event", "particle": particle.index, "step": particle.steps, "event": chunk}
            self._context.run(self._writer, event)


def event_readers(config: RunnableConfig) -> list[BaseCallbackHandler]:
    """Return the handlers behind `astream_events` and `astream_log`."""
    return [reader for reader in stream_listeners(config) if not isinstance(reader, StreamMessagesHandler)]


class _Recorder(BaseCallbackHandler):
    """Records all calls. Models stream their tokens to it, as they would to the readers."""

    run_inline = True

    def __init__(self, record: list[AgentEvent]) -> None:
        self.record = record

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[T]) -> AsyncIterator[T]:
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[T]) -> Iterator[T]:
        return output


def _recording(name: str) -> Callable[..., None]:
    def on_event(self: _Recorder, *args: Any, **kwargs: Any) -> None:
        self.record.append(AgentEvent(name, tuple(map(_as_now, args)), kwargs))

    return on_event


def _as_now(value: Any) -> Any:
    """Copy what middleware may change in place before it is shown: the message of a tool or model."""
    if isinstance(value, BaseMessage):
        return value.model_copy()
    if isinstance(value, LLMResult):
        copies = [[copy(generation) for generation in generations] for generations in value.generations]
        for generation in chain.from_iterable(copies):
            if isinstance(generation, ChatGeneration):
                generation.message = generation.message.model_copy()
        return value.model_copy(update={"generations": copies})
    return value


for _name in dir(BaseCallbackHandler):
    if _name.startswith("on_"):
        setattr(_Recorder, _name, _recording(_name))
