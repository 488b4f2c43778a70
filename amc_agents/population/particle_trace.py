"""How a particle shows in traces: one run of its own, which carries its place in the population and its outcome.

A particle is paused by not reading further from its agent's stream. Closing that stream would show as an error of the
agent's run, so the run is ended as an interrupt ends it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Literal, Protocol
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.base import BaseTracer
from langgraph.errors import GraphInterrupt, GraphRecursionError
from langgraph.types import StreamMode

from amc_agents.runtime.metering import PolicyMeter

Outcome = Literal["horizon", "forked", "discarded", "unfinished"]
"""Why a run was ended: the particle was cut at the horizon, stopped at a resampling to go on with its offspring, or not
drawn there; or the population ended."""


class Traced(Protocol):
    """What a trace says about a particle."""

    index: int
    ancestor: int | None
    steps: int


class ParticleTrace:
    """The run of one particle's agent, in every trace that is being taken.

    Args:
        particle: whose agent it is.
        config: for every particle alike, with an `AsyncCallbackManager`.
        amc_run: names the population.
    """

    def __init__(self, particle: Traced, config: RunnableConfig, amc_run: str) -> None:
        callbacks = config["callbacks"]
        assert isinstance(callbacks, AsyncCallbackManager)
        self._run_id = uuid4()
        self._handlers = callbacks.handlers
        self._heard = any(not isinstance(handler, PolicyMeter) for handler in callbacks.handlers)
        origin = "" if particle.ancestor is None else f" from particle {particle.ancestor} at step {particle.steps}"
        place = {"amc_run": amc_run, "particle": particle.index, "ancestor": particle.ancestor}
        # Where nobody listens, each node would still copy the callbacks and merge the metadata.
        self.config: RunnableConfig = {**config, "callbacks": None}
        self.stream_mode: list[StreamMode] = ["values", "updates"]
        if self._heard:
            self.config["callbacks"] = _stamping(callbacks, particle)
            self.config["metadata"] = {**config.get("metadata", {}), **place}
            self.config["run_name"] = f"particle {particle.index}{origin}"
            self.config["run_id"] = self._run_id
            self.stream_mode.append("tasks")

    async def end(self, stream: AsyncGenerator[Any, None], outcome: Outcome) -> None:
        """End a paused agent."""
        try:
            if self._heard:
                self._label(outcome)
                with suppress(StopAsyncIteration, GraphInterrupt, GraphRecursionError):
                    await _read_to_the_end(stream)
        finally:
            await stream.aclose()

    def _label(self, outcome: Outcome) -> None:
        """Tag the run in the tracers that keep a record of it: callbacks are given a run's tags at its start alone."""
        for handler in self._handlers:
            run = handler.run_map.get(str(self._run_id)) if isinstance(handler, BaseTracer) else None
            if run is not None:
                run.add_tags([outcome])
                run.add_metadata({"outcome": outcome})


class _StepStamp(BaseCallbackHandler):
    """Adds the particle's step to the metadata of each run, before any other handler reads it."""

    run_inline = True

    def __init__(self, particle: Traced) -> None:
        self._particle = particle

    def on_chain_start(self, *_: Any, metadata: dict[str, Any] | None = None, **__: Any) -> None:
        """Of a node."""
        if metadata is not None:
            metadata["step"] = self._particle.steps

    on_chat_model_start = on_llm_start = on_tool_start = on_retriever_start = on_chain_start


def _stamping(callbacks: AsyncCallbackManager, particle: Traced) -> AsyncCallbackManager:
    stamping = callbacks.copy()
    stamp = _StepStamp(particle)
    stamping.set_handlers([stamp, *callbacks.handlers])
    return stamping


async def _read_to_the_end(stream: AsyncGenerator[Any, None]) -> None:
    """Read what a paused graph has left to say, without starting its next tasks."""
    async for mode, _ in stream:
        # LangGraph announces tasks before it starts them.
        if mode == "tasks":
            break
    await stream.athrow(GraphInterrupt())
    async for _ in stream:
        pass
