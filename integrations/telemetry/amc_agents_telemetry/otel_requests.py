"""Spans of requests to models and of calls of tools, read from LangChain's callbacks; the recorder of all spans.

A request leaves only a note of its times on the way, and the thread of the backlog makes its span later. The span of
a tool is made at once, because what the tool calls belongs below it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import time_ns
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from opentelemetry import context as otel_context
from opentelemetry._logs import Logger, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context

from amc_agents.quoting import excerpt
from amc_agents.runtime.metering import OTHER_ROLES, WRAPPER_TYPES, Answer, ContextHandler, answer_of, request_observer
from amc_agents.runtime.tracing import Place
from amc_agents_telemetry import otel_attributes as named
from amc_agents_telemetry.backlog import Backlog
from amc_agents_telemetry.otel_attributes import Attributes


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


class Where(NamedTuple):
    """The place of a span in its run."""

    common: named.Attributes
    """Attributes of all spans of the scope."""
    step: int | None
    """Number of steps of the particle so far; None: there is no particle."""

    @property
    def attributes(self) -> named.Attributes:
        """The attributes of a span here."""
        return self.common if self.step is None else {**self.common, "amc.step": self.step}


NOWHERE = Where({}, None)


class _Request(NamedTuple):
    """A running request."""

    began: int
    parent: Context
    step: int | None
    asked: named.Asked
    role: str
    given: Any
    """The messages or the prompt; None: content is not captured."""


class _ToolCall(NamedTuple):
    """A running call of a tool."""

    span: Span
    around: Context
    """The context before the call."""


class RequestSpans(ContextHandler):
    """Makes the spans of the requests and tool calls of one scope: a particle's agent, or a decision.

    Args:
        recorder: makes the spans.
        common: attributes of all of them.
        place: the particle, whose step they carry; None: there is none.
    """

    ignore_agent = False  # LangChain's name for tools.

    def __init__(self, recorder: Recorder, common: named.Attributes, place: Place | None = None) -> None:
        self._recorder, self._common, self._place = recorder, common, place
        self._requests: dict[UUID, _Request] = {}
        self._tools: dict[UUID, _ToolCall] = {}

    def on_chat_model_start(
        self, serialized: dict[str, Any], messages: list[list[BaseMessage]], *, run_id: UUID, **details: Any
    ) -> None:
        """Note the start of a request. Models that only call other models are traced as decisions."""
        if (details.get("invocation_params") or {}).get("_type") not in WRAPPER_TYPES:
            self._begin(run_id, details, messages[0] if messages else [])

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], *, run_id: UUID, **details: Any) -> None:
        """Note the start of a request to a plain-text model."""
        self._begin(run_id, details, prompts[0] if prompts else "")

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, answer: Answer | None = None, **_: Any) -> None:
        """Note the answer.

        Args:
            response: the answer, kept only if content is captured.
            run_id: of the request.
            answer: its metadata, if the caller has read it.
        """
        request = self._requests.pop(run_id, None)
        if request is not None:
            told, texts = named.told(answer or answer_of(response)), response if self._recorder.content else None
            self._recorder.later(self._record, request, time_ns(), told, texts, None)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Note the failure."""
        request = self._requests.pop(run_id, None)
        if request is not None:
            self._recorder.later(self._record, request, time_ns(), None, None, error)

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, **details: Any) -> None:
        """Begin the span of a tool, and make it the parent of what the tool calls."""
        if run_id in self._tools:  # Both a meter and this handler itself received the event.
            return
        name = details.get("name") or (serialized or {}).get("name") or "tool"
        around = otel_context.get_current()
        attributes = {**self.where().attributes, **of_tool(name, details.get("tool_call_id"))}
        if self._recorder.content:
            given = details.get("inputs")
            attributes |= named.text("gen_ai.tool.call.arguments", input_str if given is None else given)
            attributes["input.value"] = attributes["gen_ai.tool.call.arguments"]
        span = self._recorder.begin(f"execute_tool {name}", around, attributes)
        self._tools[run_id] = _ToolCall(span, around)
        otel_context.attach(set_span_in_context(span, around))

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        """End the span of a tool."""
        self._end_tool(run_id, output=output)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """End the span of a tool that failed."""
        self._end_tool(run_id, error=error)

    def close(self) -> None:
        """End what still runs, such as the requests of a cancelled agent."""
        for run_id in [*self._requests]:
            self.on_llm_error(Unfinished(), run_id=run_id)
        for call in [self._tools.pop(run_id) for run_id in [*self._tools]]:
            self._recorder.end(call.span, time_ns(), {}, Unfinished())

    def _begin(self, run_id: UUID, details: Mapping[str, Any], given: Any) -> None:
        tags = details.get("tags") or ()
        self._requests[run_id] = _Request(
            time_ns(),
            otel_context.get_current(),
            None if self._place is None else self._place.steps,
            named.asked(details.get("metadata") or {}),
            "policy" if OTHER_ROLES.isdisjoint(tags) else next(tag for tag in tags if tag in OTHER_ROLES),
            given if self._recorder.content else None,
        )

    def where(self) -> Where:
        """Return the place of spans that begin now."""
        return Where(self._common, None if self._place is None else self._place.steps)

    def _record(
        self,
        request: _Request,
        ended: int,
        told: named.Told | None,
        texts: LLMResult | None,
        error: BaseException | None,
    ) -> None:
        """Make the span of a request that has ended."""
        where = Where(self._common, request.step)
        attributes = {**where.attributes, **named.of_request(request.asked, request.role)}
        attributes |= {} if told is None else named.of_answer(told)
        given = request.given
        if given is not None:
            attributes |= named.of_prompt(given) if isinstance(given, str) else named.of_conversation(given)
        attributes |= {} if texts is None else named.of_answers(texts)
        name = f"chat {request.asked.model}" if request.asked.model is not None else "chat"
        span = self._recorder.begin(name, request.parent, attributes, began=request.began, kind=SpanKind.CLIENT)
        self._recorder.end(span, ended, {}, error)

    def _end_tool(self, run_id: UUID, *, output: Any = None, error: BaseException | None = None) -> None:
        call = self._tools.pop(run_id, None)
        if call is None:
            return
        otel_context.attach(call.around)
        result: named.Attributes = {}
        if self._recorder.content and error is None:
            answer = output.text if isinstance(output, BaseMessage) else output
            result = named.text("gen_ai.tool.call.result", answer)
            result["output.value"] = result["gen_ai.tool.call.result"]
        self._recorder.later(self._recorder.end, call.span, time_ns(), result, error)


class Unfinished(Exception):
    """The scope of a request or a tool call ended before its answer came."""


def of_tool(name: str, call_id: str | None = None) -> named.Attributes:
    """Return the attributes of a tool's call."""
    attributes = {
        named.OPERATION: "execute_tool",
        named.KIND: "TOOL",
        "gen_ai.tool.name": name,
        "gen_ai.tool.type": "function",
        "tool.name": name,
    }
    return attributes if call_id is None else {**attributes, "gen_ai.tool.call.id": call_id}


def where_now() -> Where:
    """Return the place of spans that begin now in this context."""
    spans = request_observer()
    return spans.where() if isinstance(spans, RequestSpans) else NOWHERE
