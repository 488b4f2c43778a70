"""Trace each particle as a run of its own, with its place in the population and its outcome.

A particle is paused by not reading further from its agent's stream. Closing the stream would appear in traces as an
error of the agent's run, so the run is ended like an interrupted run.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable
from uuid import UUID, uuid4

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.base import BaseTracer
from langgraph.errors import GraphInterrupt, GraphRecursionError
from langgraph.types import StreamMode

Outcome = Literal["horizon", "forked", "saved", "discarded", "unfinished"]
"""Why a particle's run was ended: the horizon was reached, a resampling forked or discarded the particle, a durable
point was made, or the population's run ended."""


class Traced(Protocol):
    """The attributes of a particle that appear in its trace."""

    index: int
    ancestor: int | None
    steps: int


@runtime_checkable
class ValueListener(Protocol):
    """A callback handler that also receives the values of particles."""

    def on_particle_value(self, value: float, *, run_id: UUID, trace_id: UUID | None, project: str | None) -> None:
        """Receive the critic's value of a particle.

        Args:
            value: NaN if the critic or the particle failed.
            run_id: the particle's run in the traces.
            trace_id: the outermost run around it; None: no tracer records it.
            project: name of the tracer's project; None: it has none.
        """
        ...


class ParticleTrace:
    """The run of a particle's agent in the active traces.

    Args:
        particle: the agent's particle.
        config: shared by all particles, with an `AsyncCallbackManager`.
        amc_run: identifier of the population.
        readers: handlers of this particle's own.
    """

    def __init__(
        self, particle: Traced, config: RunnableConfig, amc_run: str, readers: Sequence[BaseCallbackHandler] = ()
    ) -> None:
        callbacks = config["callbacks"]
        assert isinstance(callbacks, AsyncCallbackManager)
        self._run_id = uuid4()
        self._handlers = callbacks.handlers
        self._traced = bool(callbacks.handlers or readers)
        self._listeners = [handler for handler in callbacks.handlers if isinstance(handler, ValueListener)]
        self._root = _root_of(callbacks) if self._listeners else _UNKNOWN
        origin = "" if particle.ancestor is None else f" from particle {particle.ancestor} at step {particle.steps}"
        place = {"amc_run": amc_run, "particle": particle.index, "ancestor": particle.ancestor}
        # Even without listeners, each node would copy the callbacks and merge the metadata.
        self.config: RunnableConfig = {**config, "callbacks": None}
        self.stream_mode: list[StreamMode] = ["values", "updates"]
        if self._traced:
            self.config["callbacks"] = _stamping(callbacks, particle, readers)
            self.config["metadata"] = {**config.get("metadata", {}), **place}
            self.config["run_name"] = f"particle {particle.index}{origin}"
            self.config["run_id"] = self._run_id
            self.stream_mode.append("tasks")

    async def end(self, stream: AsyncGenerator[Any, None], outcome: Outcome) -> None:
        """End the run of a paused agent."""
        try:
            if self._traced:
                self._label(outcome)
                with suppress(StopAsyncIteration, GraphInterrupt, GraphRecursionError):
                    await _drain(stream)
        finally:
            await stream.aclose()

    def tell(self, value: float) -> None:
        """Pass the particle's value to the handlers that listen to values."""
        for handler in self._listeners:
            handler.on_particle_value(value, run_id=self._run_id, **self._root._asdict())

    def _label(self, outcome: Outcome) -> None:
        """Tag the run in the tracers that record it: callbacks receive a run's tags only at its start."""
        for handler in self._handlers:
            run = handler.run_map.get(str(self._run_id)) if isinstance(handler, BaseTracer) else None
            if run is not None:
                run.add_tags([outcome])
                run.add_metadata({"outcome": outcome})


class _StepStamp(BaseCallbackHandler):
    """Adds the particle's step to the metadata of each run before other handlers read it."""

    run_inline = True

    def __init__(self, particle: Traced) -> None:
        self._particle = particle

    def on_chain_start(self, *_: Any, metadata: dict[str, Any] | None = None, **__: Any) -> None:
        """Add the step to the metadata of a node's run."""
        if metadata is not None:
            metadata["step"] = self._particle.steps

    on_chat_model_start = on_llm_start = on_tool_start = on_retriever_start = on_chain_start


class _Root(NamedTuple):
    """The outermost run around a particle's, where a tracer records it."""

    trace_id: UUID | None
    project: str | None


_UNKNOWN = _Root(None, None)


def _root_of(callbacks: AsyncCallbackManager) -> _Root:
    for handler in callbacks.handlers:
        around = handler.run_map.get(str(callbacks.parent_run_id)) if isinstance(handler, BaseTracer) else None
        if around is not None:
            return _Root(around.trace_id, getattr(handler, "project_name", None))
    return _UNKNOWN


def _stamping(
    callbacks: AsyncCallbackManager, particle: Traced, readers: Sequence[BaseCallbackHandler]
) -> AsyncCallbackManager:
    stamping = callbacks.copy()
    stamp = _StepStamp(particle)
    stamping.set_handlers([stamp, *callbacks.handlers, *readers])
    return stamping


async def _drain(stream: AsyncGenerator[Any, None]) -> None:
    """Read the remaining events of a paused graph without starting its next tasks."""
    async for mode, _ in stream:
        # LangGraph announces tasks before it starts them.
        if mode == "tasks":
            break
    await stream.athrow(GraphInterrupt())
    async for _ in stream:
        pass
