"""The tracer that makes OpenTelemetry spans of runs, particles, decisions and worlds."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import time_ns
from typing import Any, NamedTuple

from opentelemetry import _logs, trace
from opentelemetry import context as otel_context
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from amc_agents.runtime.metering import observe_requests
from amc_agents.runtime.tracing import AgentSpan as AnySpan
from amc_agents.runtime.tracing import Kind, Place
from amc_agents.types import TimeStep
from amc_agents_telemetry import otel_attributes as named
from amc_agents_telemetry.backlog import Backlog
from amc_agents_telemetry.otel_requests import Recorder, RequestSpans, Where, of_tool, where_now

_W3C = TraceContextTextMapPropagator()
_WAITS_FOR_RESULT = ("finished", "horizon")
"""Outcomes after which a particle may still be weighed and selected: its span is exported at the end of the run."""


class OpenWork:
    """The span of a part of a method."""

    def __init__(self, recorder: Recorder, span: Span) -> None:
        self._recorder, self._span = recorder, span

    def note(self, **attributes: Any) -> None:
        """Add our own attributes."""
        self._span.set_attributes(named.own(attributes))

    def report(self, record: Mapping[str, Any]) -> None:
        """Add a record, its texts only if content is captured."""
        self._span.set_attributes(named.of_record(record, content=self._recorder.content))


@contextmanager
def work_below(
    recorder: Recorder, parent: Context, name: str, kind: Kind, attributes: named.Attributes, common: named.Attributes
) -> Iterator[OpenWork]:
    """Trace a block, with its requests to models and its tool calls below it."""
    span = recorder.begin(name, parent, {named.KIND: kind, **common, **attributes})
    requests = RequestSpans(recorder, common)
    token = otel_context.attach(set_span_in_context(span, parent))
    before = observe_requests(requests)
    failure: BaseException | None = None
    try:
        yield OpenWork(recorder, span)
    except BaseException as error:
        failure = error
        raise
    finally:
        observe_requests(before)
        otel_context.detach(token)
        requests.close()
        recorder.later(recorder.end, span, time_ns(), {}, failure)


class AgentSpan:
    """The span of a particle's agent from its start or restart to its stop."""

    def __init__(self, run: RunSpan, place: Place, after: AnySpan, node: str) -> None:
        self.node, self._run, self._place = node, run, place
        self._ended: tuple[int, BaseException | None] | None = None
        common = {**run.common, **named.own({"particle": place.index, "ancestor": place.ancestor})}
        origin = "" if place.ancestor is None else f" from particle {place.ancestor} at step {place.steps}"
        self._finally: named.Attributes = {
            named.KIND: "AGENT",
            named.NODE: node,
            named.PARENT_NODE: after.node if isinstance(after, AgentSpan) else run.node,
            named.NODE_NAME: f"particle {place.index}{origin}",
            **common,
            "amc.step": place.steps,
        }
        """Added by the backlog's thread, because the SDK examines each attribute."""
        name = f"particle {place.index}"
        self._span = run.recorder.begin(
            f"invoke_agent {name}",
            run.context,
            {named.OPERATION: "invoke_agent", "gen_ai.agent.name": name},
            links=_links(_context_of(after), "ancestor"),
        )
        self.context = set_span_in_context(self._span)
        self._requests = RequestSpans(run.recorder, common, place)
        # The context is the particle's own, in all its steps: nothing is to be restored.
        otel_context.attach(self.context)
        observe_requests(self._requests)

    @property
    def traceparent(self) -> str | None:
        """The span's context in W3C form."""
        return _traceparent(self._span)

    @property
    def span_context(self) -> SpanContext:
        """What a link needs."""
        return self._span.get_span_context()

    def set(self, **attributes: Any) -> None:
        """Add our own attributes, until the span is exported."""
        self._finally |= named.own(attributes)

    def end(self, outcome: str, error: BaseException | None = None) -> None:
        """End the span; it is exported once nothing more can become of the particle."""
        if self._ended is not None:
            return
        self._ended = time_ns(), error
        self._requests.close()
        self.set(outcome=outcome, steps=self._place.steps)
        if outcome not in _WAITS_FOR_RESULT:
            self.export()

    def export(self) -> None:
        """Hand the ended span over."""
        if self._ended is None or self not in self._run.open:
            return
        del self._run.open[self]
        ended, error = self._ended
        recorder = self._run.recorder
        recorder.later(recorder.end, self._span, ended, self._finally, error)


class RunSpan:
    """The span of a run of `amc`."""

    def __init__(self, recorder: Recorder, name: str, thread_id: str | None) -> None:
        self.recorder, self.node = recorder, "amc"
        self.common: named.Attributes = {}
        """Attributes of all spans of the run."""
        self.open: dict[AgentSpan, None] = {}
        """The particles' spans that are not exported yet."""
        self._segments: Counter[int] = Counter()
        conversation = {} if thread_id is None else {"gen_ai.conversation.id": thread_id, "session.id": thread_id}
        attributes = {
            named.OPERATION: "invoke_workflow",
            named.KIND: "CHAIN",
            "gen_ai.agent.name": name,
            "gen_ai.workflow.name": name,
            named.NODE: self.node,
            **conversation,
        }
        around = otel_context.get_current()
        self._span = recorder.begin(f"invoke_workflow {name}", around, attributes)
        self.context = set_span_in_context(self._span, around)

    @property
    def traceparent(self) -> str | None:
        """The span's context in W3C form."""
        return _traceparent(self._span)

    def agent(self, run_id: str, place: Place, after: AnySpan) -> AgentSpan:
        """Begin a particle's span in the current context, which is the particle's own."""
        if not self.common:
            self.common = named.own({"run": run_id})
            self._span.set_attributes(self.common)
        self._segments[place.index] += 1
        span = AgentSpan(self, place, after, f"particle {place.index}.{self._segments[place.index]}")
        self.open[span] = None
        return span

    def continues(self, traceparent: str) -> None:
        """Link to the run that this run resumes."""
        for link in _links(_remote(traceparent), "resumed"):
            self._span.add_link(link.context, link.attributes)

    @contextmanager
    def work(self, name: str, kind: Kind = "CHAIN", **attributes: Any) -> Iterator[OpenWork]:
        """Trace a block below the run."""
        with work_below(self.recorder, self.context, name, kind, named.own(attributes), self.common) as work:
            yield work

    def valued(self, critic: str, step: int, agents: Sequence[AnySpan], values: Sequence[float]) -> None:
        """Emit an evaluation result for each particle with a value."""
        at = time_ns()
        for agent, value in zip(agents, values, strict=True):
            if not isinstance(agent, AgentSpan) or not math.isfinite(value):
                continue
            agent.set(value=value)
            result = {"gen_ai.evaluation.name": critic, "gen_ai.evaluation.score.value": value, "amc.step": step}
            self.recorder.later(self.recorder.evaluated, agent.context, at, {**self.common, **result})

    def concluded(self, facts: Mapping[str, Any], winner: AnySpan, notes: Sequence[str]) -> None:
        """Add the result."""
        self._span.set_attributes(named.own(facts))
        if self.recorder.content and notes:
            self._span.set_attributes(named.text("amc.notes", list(notes)))
        if isinstance(winner, AgentSpan):
            winner.set(winner=True)
            self._span.add_link(winner.span_context, {"amc.link": "winner"})

    def end(self, error: BaseException | None = None) -> None:
        """End the span and all open spans of particles."""
        for agent in [*self.open]:
            agent.end("unfinished")
            agent.export()
        self.recorder.later(self.recorder.end, self._span, time_ns(), {}, error)


def _traceparent(span: Span) -> str | None:
    carrier: dict[str, str] = {}
    _W3C.inject(carrier, set_span_in_context(span, Context()))
    return carrier.get("traceparent")


def _context_of(span: AnySpan) -> SpanContext | None:
    if isinstance(span, AgentSpan):
        return span.span_context
    return None if span.traceparent is None else _remote(span.traceparent)


def _remote(traceparent: str) -> SpanContext:
    return get_current_span(_W3C.extract({"traceparent": traceparent}, Context())).get_span_context()


def _links(context: SpanContext | None, relation: str) -> list[Link]:
    return [] if context is None or not context.is_valid else [Link(context, {"amc.link": relation})]


_SCOPE = "amc_agents"
_WORLD = "environment"
"""Name of a world as a tool."""


class _Step(NamedTuple):
    """A running step of a world."""

    began: int
    parent: Context
    where: Where
    action: str | None
    """None: content is not captured."""


class OtelTracer:
    """Makes the spans of one set of providers; its methods are described in `runtime.tracing.Tracer`."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None,
        logger_provider: _logs.LoggerProvider | None,
        *,
        content: bool,
    ) -> None:
        self._providers = tracer_provider or trace.get_tracer_provider(), logger_provider or _logs.get_logger_provider()
        self._backlog = Backlog(lambda: self._force_flush(5.0))
        tracer, logger = self._providers[0].get_tracer(_SCOPE), self._providers[1].get_logger(_SCOPE)
        self._recorder = Recorder(tracer, logger, self._backlog, content=content)

    def run(self, name: str, thread_id: str | None) -> RunSpan:
        """Begin the span of a run."""
        return RunSpan(self._recorder, name, thread_id)

    @contextmanager
    def work(self, name: str, kind: Kind = "CHAIN", **attributes: Any) -> Iterator[OpenWork]:
        """Trace a block below the current span."""
        around = otel_context.get_current()
        with work_below(self._recorder, around, name, kind, named.own(attributes), {}) as work:
            yield work

    async def world_step(self, step: Callable[[str], Awaitable[TimeStep]], action: str) -> TimeStep:
        """Trace a step of a world as a call of a tool."""
        content = self._recorder.content
        began = _Step(time_ns(), otel_context.get_current(), where_now(), action if content else None)
        try:
            answer = await step(action)
        except BaseException as error:
            self._recorder.later(self._record_step, began, time_ns(), None, None, error)
            raise
        observation = answer.observation if content else None
        self._recorder.later(self._record_step, began, time_ns(), (answer.reward, answer.done), observation, None)
        return answer

    def flush(self, timeout_s: float) -> bool:
        """Export everything so far; False: it was not done in time."""
        limit = time.monotonic() + timeout_s
        made = self._backlog.flush(timeout_s)
        return made and self._force_flush(max(0.0, limit - time.monotonic()))

    def stop(self) -> None:
        """End the thread."""
        self._backlog.stop()

    def _record_step(
        self,
        step: _Step,
        ended: int,
        result: tuple[float, bool] | None,
        observation: str | None,
        error: BaseException | None,
    ) -> None:
        attributes = {**step.where.attributes, **of_tool(_WORLD)}
        if result is not None:
            attributes |= named.own({"reward": result[0], "done": result[1]})
        attributes |= {} if step.action is None else named.text("input.value", step.action)
        attributes |= {} if observation is None else named.text("output.value", observation)
        span = self._recorder.begin(f"execute_tool {_WORLD}", step.parent, attributes, began=step.began)
        self._recorder.end(span, ended, {}, error)

    def _force_flush(self, timeout_s: float) -> bool:
        # Only the SDK's providers can flush; others, such as that of a vendor's agent, do so by themselves.
        flushes = [getattr(provider, "force_flush", None) for provider in self._providers]
        return all(flush(int(1000 * timeout_s)) is not False for flush in flushes if flush is not None)
