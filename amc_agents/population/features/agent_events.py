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

from amc_agents.runtime.calls import stream_listeners

T = TypeVar("T")


class AgentEvent(NamedTuple):
    """A call of a callback handler."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class AgentEvents:
    """Records what happens in the agents of a run, and shows what happened in the answer's.

    Args:
        readers: the handlers behind `astream_events` and `astream_log`.
        everyone: show what happens in all agents, when it happens.
    """

    def __init__(self, readers: Sequence[BaseCallbackHandler], *, everyone: bool = False) -> None:
        self._readers, self._everyone = [*readers], everyone

    @classmethod
    def of(cls, config: RunnableConfig, *, everyone: bool) -> AgentEvents | None:
        """Return the events for the readers of a call; None: it has none.

        Args:
            config: of a node.
            everyone: as of the class.
        """
        readers = [one for one in stream_listeners(config) if not isinstance(one, StreamMessagesHandler)]
        return cls(readers, everyone=everyone) if readers else None

    def handlers(self, record: list[AgentEvent], *, live: bool) -> list[BaseCallbackHandler]:
        """Return the handlers of a particle's next runs: a recorder, or the readers themselves if it is the answer."""
        return self._readers if live or self._everyone else [_Recorder(record)]

    async def show(self, record: list[AgentEvent]) -> None:
        """Show the readers what is recorded, and clear it."""
        recorded, record[:] = [*record], []
        for event in recorded:
            await ahandle_event(self._readers, event.name, None, *event.args, **event.kwargs)


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
        copies = [[copy(one) for one in generations] for generations in value.generations]
        for one in chain.from_iterable(copies):
            if isinstance(one, ChatGeneration):
                one.message = one.message.model_copy()
        return value.model_copy(update={"generations": copies})
    return value


for _name in dir(BaseCallbackHandler):
    if _name.startswith("on_"):
        setattr(_Recorder, _name, _recording(_name))


EventListener = Callable[[int, int, Any], None]
"""Receives a particle's index, its number of steps, and the event that its agent wrote."""


def event_listener(writer: Callable[[Any], None]) -> EventListener | None:
    """Create a listener that writes events to the outer run's stream, in the context of the calling node.

    Args:
        writer: the outer run's stream writer.

    Returns:
        None if the custom stream has no reader: listening to particles costs a tenth of a step.
    """
    # Without a reader, LangGraph's writer is a function without a closure, hence without a stream.
    if getattr(writer, "__closure__", writer) is None:
        return None
    context = copy_context()

    def pass_on(particle: int, step: int, event: Any) -> None:
        context.run(writer, {"type": "amc.event", "particle": particle, "step": step, "event": event})

    return pass_on
