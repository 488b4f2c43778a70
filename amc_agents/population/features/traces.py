"""Trace a run: spans of the run's verbs and of its agents, and each particle as a run of its own in LangChain's traces.

A particle is paused by not reading further from its agent's stream. Closing the stream would appear in traces as an
error of the agent's run, so the run is ended like an interrupted run. Why a particle's run ended, its outcome, is
"horizon", "forked", "saved" (a durable point), "discarded", "unfinished", "held", "finished" or "failed".
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable
from uuid import UUID, uuid4

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.tracers.base import BaseTracer
from langgraph.errors import GraphInterrupt, GraphRecursionError

from amc_agents.logs import log, room_logger
from amc_agents.population.conclusion import facts_of
from amc_agents.population.feature import AgentStart, Feature
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.run import Run
from amc_agents.runtime.tracing import NO_SPAN, AgentSpan, RunSpan, Untraced, WorkSpan

_log = room_logger(__name__)


def logs_verbs() -> bool:
    """Whether weighings and resamplings are logged."""
    return _log.isEnabledFor(logging.DEBUG)


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


@dataclass
class _Traced:
    """The traced run of a particle's agent."""

    span: AgentSpan = NO_SPAN
    """The span of its agent's last start, which a fork continues."""
    run_id: UUID | None = None
    """Of its run in LangChain's traces; None: these are off."""
    handlers: Sequence[BaseCallbackHandler] = ()
    """Those of the run around it."""
    root: _Root | None = None
    """None: no handler listens to values."""


class Traces(Feature):
    """Writes what happens to the tracer's spans, to LangChain's tracers and to the log.

    Args:
        span: of the run.
        run_id: identifies the population.
    """

    name = "traces"

    def __init__(self, span: RunSpan, run_id: str) -> None:
        self._span, self._run_id = span, run_id

    async def on_start(self, system: ParticleSystem) -> None:
        """Take over the identifier of a restored run."""
        self._run_id = system.outlet.run_id

    # Verbs

    @asynccontextmanager
    async def around(self, verb: str, system: ParticleSystem | None) -> AsyncIterator[None]:
        """Trace a weighing or a resampling."""
        if system is None or verb not in ("weigh", "resample"):
            yield
        elif verb == "weigh":
            before, critic = len(system.history), system.settings.critic
            with self._span.work("amc.weigh", "EVALUATOR", step=system.step, critic=critic) as span:
                yield
                if len(system.history) > before:
                    self._record_weighing(system, span)
        else:
            with self._span.work("amc.resample", step=system.step) as span:
                yield
                self._record_resampling(system, span)

    def _record_weighing(self, system: ParticleSystem, span: WorkSpan) -> None:
        point, values = system.history[-1], system.history[-1].values.tolist()
        span.note(values=values, log_weights=point.log_weights.tolist(), ess=point.ess, due=system.due)
        log(_log, logging.DEBUG, "particles.weighed", "run %(run)s was weighed at step %(step)d: ESS %(ess).3g",
            run=self._run_id, step=point.step, ess=point.ess)  # fmt: skip
        traced = [_of(particle) for particle in system.particles]
        self._span.valued(system.settings.critic, point.step, [each.span for each in traced], values)
        for each, value in zip(traced, values, strict=True):
            for handler in () if each.root is None else each.handlers:
                if isinstance(handler, ValueListener):
                    assert each.run_id is not None
                    assert each.root is not None
                    handler.on_particle_value(value, run_id=each.run_id, **each.root._asdict())

    def _record_resampling(self, system: ParticleSystem, span: WorkSpan) -> None:
        point = system.history[-1]
        if point.ancestors is not None:
            ancestors = point.ancestors.tolist()
            span.note(ancestors=ancestors, retired=list(point.retired))
            log(_log, logging.DEBUG, "particles.resampled", "run %(run)s was resampled at step %(step)d: %(ancestors)s",
                run=self._run_id, step=point.step, ancestors=ancestors)  # fmt: skip

    def on_result(self, run: Run, winner: Particle) -> None:
        """Record the result of the run."""
        self._span.concluded(facts_of(run), _of(winner).span, run.notes)

    # Particles

    def on_fork(self, parent: Particle, child: Particle) -> None:
        """Continue the parent's span."""
        child.states[Traces] = _Traced(_of(parent).span)

    async def on_agent_start(self, particle: Particle, start: AgentStart) -> None:
        """Begin the particle's span, and its run in LangChain's traces."""
        callbacks, traced = start.shared["callbacks"], _of(particle)
        assert isinstance(callbacks, AsyncCallbackManager)
        traced.span = self._span.agent(self._run_id, particle, traced.span)
        if not callbacks.handlers and not start.handlers:
            return
        traced.run_id, traced.handlers = uuid4(), callbacks.handlers
        listens = any(isinstance(handler, ValueListener) for handler in callbacks.handlers)
        traced.root = _root_of(callbacks) if listens else None
        origin = "" if particle.ancestor is None else f" from particle {particle.ancestor} at step {particle.steps}"
        place = {"amc_run": self._run_id, "particle": particle.index, "ancestor": particle.ancestor}
        start.handlers[:0] = [_StepStamp(particle), *callbacks.handlers]
        start.config["metadata"].update(place)
        start.config["run_name"] = f"particle {particle.index}{origin}"
        start.config["run_id"] = traced.run_id
        start.stream_mode.append("tasks")

    async def on_agent_end(
        self, particle: Particle, outcome: str, stream: Any = None, error: BaseException | None = None
    ) -> None:
        """End the particle's span, and the run of a paused agent."""
        traced = _of(particle)
        try:
            if stream is not None and traced.run_id is not None:
                self._label(traced, outcome)
                with suppress(StopAsyncIteration, GraphInterrupt, GraphRecursionError):
                    await _drain(stream)
        finally:
            traced.span.end(outcome, error)

    def _label(self, traced: _Traced, outcome: str) -> None:
        """Tag the run in the tracers that record it: callbacks receive a run's tags only at its start."""
        for handler in traced.handlers:
            run = handler.run_map.get(str(traced.run_id)) if isinstance(handler, BaseTracer) else None
            if run is not None:
                run.add_tags([outcome])
                run.add_metadata({"outcome": outcome})

    # Durable points

    def record(self, system: ParticleSystem) -> str | None:
        """Return the context of the run's span, to which a resumed run links."""
        return self._span.traceparent

    def restore(self, system: ParticleSystem, recorded: str | None) -> None:
        """Link to the span of the recorded run."""
        if recorded is not None:
            self._span.continues(recorded)

    def record_of(self, particle: Particle) -> str | None:
        """Return the context of the particle's span."""
        return _of(particle).span.traceparent

    def restore_of(self, particle: Particle, recorded: str | None) -> None:
        """Let the particle's next span link to the recorded one."""
        if recorded is not None:
            particle.states[Traces] = _Traced(Untraced(recorded))


def _of(particle: Particle) -> _Traced:
    traced: _Traced = particle.states.setdefault(Traces, _Traced())
    return traced


class _StepStamp(BaseCallbackHandler):
    """Adds the particle's step to the metadata of each run before other handlers read it."""

    run_inline = True

    def __init__(self, particle: Particle) -> None:
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


async def _drain(stream: AsyncGenerator[Any, None]) -> None:
    """Read the remaining events of a paused graph without starting its next tasks."""
    async for mode, _ in stream:
        # LangGraph announces tasks before it starts them.
        if mode == "tasks":
            break
    await stream.athrow(GraphInterrupt())
    async for _ in stream:
        pass
