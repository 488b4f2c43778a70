"""The tracer that makes OpenTelemetry spans of runs, decisions and worlds."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import time_ns
from typing import Any, NamedTuple

from opentelemetry import _logs, trace
from opentelemetry import context as otel_context
from opentelemetry.context import Context

from amc_agents.operations.telemetry.backlog import Backlog
from amc_agents.operations.telemetry.otel import attributes as named
from amc_agents.operations.telemetry.otel.recorder import Recorder
from amc_agents.operations.telemetry.otel.requests import Where, of_tool, where_now
from amc_agents.operations.telemetry.otel.spans import OpenWork, RunSpan, work_below
from amc_agents.runtime.tracing import Kind
from amc_agents.types import TimeStep

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
