"""Begin and end spans with a tracer of OpenTelemetry, and emit evaluation results with its logger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import time_ns

from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer

from amc_agents.operations.telemetry.backlog import Backlog
from amc_agents.operations.telemetry.otel.attributes import Attributes
from amc_agents.quoting import excerpt


class Recorder:
    """What makes spans.

    Args:
        tracer: of OpenTelemetry.
        logger: of OpenTelemetry.
        backlog: does what need not be done at once.
        content: record the texts of messages, actions, observations and errors.
    """

    def __init__(self, tracer: Tracer, logger: Logger, backlog: Backlog, *, content: bool) -> None:
        self._tracer, self._logger = tracer, logger
        self.content = content
        self.later: Callable[..., None] = backlog.add
        """Does `work(*arguments)` in the thread of the backlog."""

    def begin(
        self,
        name: str,
        parent: Context,
        attributes: Attributes,
        *,
        began: int | None = None,
        links: Sequence[Link] = (),
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> Span:
        """Begin a span.

        Args:
            name: of the span.
            parent: context with the parent span.
            attributes: known at its start.
            began: time in nanoseconds since 1970; None: now.
            links: to other spans.
            kind: its role in a remote call.
        """
        return self._tracer.start_span(
            name, parent, kind, attributes, links, began or time_ns(), record_exception=False
        )

    def end(self, span: Span, ended: int, attributes: Attributes, error: BaseException | None = None) -> None:
        """End a span; the text of an error is content."""
        span.set_attributes(attributes)
        if error is not None:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR, excerpt(str(error)) if self.content else None))
        span.end(ended)

    def evaluated(self, context: Context, at: int, attributes: Attributes) -> None:
        """Emit an evaluation result of the span in `context`."""
        self._logger.emit(
            timestamp=at,
            context=context,
            severity_number=SeverityNumber.INFO,
            attributes=attributes,
            event_name="gen_ai.evaluation.result",
        )
