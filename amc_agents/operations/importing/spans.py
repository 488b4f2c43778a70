"""OpenTelemetry spans of model calls: by the GenAI conventions, or by OpenInference.

A model call records the whole conversation so far, so the last call of a trace holds all of it. The spans of a trace
may be anywhere in the logs: they are first sorted by trace, in a nameless temporary file that no crash leaves behind.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.operations.importing.json_files import json_paths, json_values
from amc_agents.operations.importing.logged_messages import messages_of
from amc_agents.operations.importing.logged_runs import (
    LoggedRun,
    Origin,
    Reading,
    Refused,
    UnreadableRecord,
    amount_of,
    field_of,
    is_answer,
    malformed_is_unreadable,
    moment_of,
    reader_of,
    task_of,
    total_of,
    turn_starts,
    without_prompt,
)


class Span(NamedTuple):
    """What an import needs of a span; serialisable as JSON."""

    trace: str
    start: str
    """Start time; sorts by time within a format."""
    attributes: dict[str, Any]
    evaluations: dict[str, float]
    """Evaluation name -> score, from the span's events."""
    end: str = ""


def spans_in(value: Any) -> Iterator[Span]:
    """Yield the spans of a JSON value.

    Raises:
        UnreadableRecord: the value has another form.
    """
    try:
        if "resourceSpans" in value:
            scopes = (scope for resource in value["resourceSpans"] for scope in resource.get("scopeSpans", ()))
            yield from (_otlp(span) for scope in scopes for span in scope.get("spans", ()))
        else:
            attributes = _attributes(value)
            yield Span(
                _storable(_named(value, "context.trace_id", "context.traceId", "trace_id", "traceId")),
                _storable(_named(value, *_STARTS)), attributes,
                _evaluations(attributes, [dict(event.get("attributes") or {}) for event in value.get("events") or ()]),
                str(_named(value, *_ENDS) or ""),
            )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise UnreadableRecord(
            f"not a span ({type(error).__name__}): expected `resourceSpans` (OTLP), or the id of its trace, its start "
            "and its `attributes`"
        ) from None


def _named(span: Mapping[str, Any], *names: str) -> Any:
    return next((value for value in (field_of(span, name) for name in names) if value is not None), None)


def _attributes(span: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a span with dotted names: exporters nest them, or write each as a field of the span."""
    nested = span.get("attributes") or {}
    if isinstance(nested, list):
        nested = _pairs(nested)
    attributes = _flat(json.loads(nested) if isinstance(nested, str) else nested)
    mark = "attributes."
    attributes |= _flat({name[len(mark) :]: value for name, value in span.items() if name.startswith(mark)})
    if isinstance(span.get("span_kind"), str):
        attributes.setdefault("openinference.span.kind", span["span_kind"])
    return attributes


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def _otlp(span: Mapping[str, Any]) -> Span:
    attributes = _pairs(span.get("attributes", ()))
    events = [_pairs(event.get("attributes", ())) for event in span.get("events", ())]
    start = f"{int(span['startTimeUnixNano']):020d}"
    end = str(span.get("endTimeUnixNano") or "")
    return Span(_storable(span["traceId"]), start, attributes, _evaluations(attributes, events), end)


def _storable(value: Any) -> str:
    if not isinstance(value, str | int):
        raise TypeError("expected text or a number")
    # A lone surrogate cannot be stored.
    return str(value).encode("utf-8", "replace").decode("utf-8")


def _pairs(attributes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in attributes}


def _value(value: Mapping[str, Any]) -> Any:
    """Return a value of OTLP, which names its type."""
    for kind, content in value.items():
        match kind:
            case "arrayValue":
                return [_value(item) for item in content.get("values", ())]
            case "kvlistValue":
                return _pairs(content.get("values", ()))
            case "intValue":
                return int(content)
            case _:
                return content
    return None


def _evaluations(attributes: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    named = [(each.get(_NAME), each.get(_SCORE)) for each in (attributes, *events)]
    return {name: score for name, score in named if isinstance(name, str) and isinstance(score, int | float)}


_STARTS = ("start_time", "startTimeUnixNano", "start_time_unix_nano", "startTime", "start_timestamp", "timestamp")
_ENDS = ("end_time", "endTimeUnixNano", "end_time_unix_nano", "endTime", "end_timestamp")
_NAME, _SCORE = "gen_ai.evaluation.name", "gen_ai.evaluation.score.value"


def is_model_call(span: Span) -> bool:
    """Return whether a span is a chat with a model."""
    attributes = span.attributes
    return (
        attributes.get("gen_ai.operation.name") in ("chat", "generate_content")
        or attributes.get("openinference.span.kind") == "LLM"
        or attributes.get("llm.request.type") == "chat"
        or any(f"{prefix}.0.role" in attributes for prefix, _ in _NUMBERED)
    )


def messages_of_call(span: Span) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Return what a model was given and what it answered; the answer of a failed call is empty.

    Raises:
        UnreadableRecord: the span holds no messages, or they have another form.
    """
    try:
        given, answer = _logged(span.attributes)
    except UnreadableRecord:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise UnreadableRecord(f"the messages of a model call have an unknown form ({type(error).__name__})") from None
    if not given:
        raise UnreadableRecord(
            "a model call without its messages: switch on the capture of message content in the agent's instrumentation"
        )
    if len(answer) > 1:
        raise UnreadableRecord("a model call with several answers: it is unknown which of them went on")
    return messages_of(given), messages_of(answer) if answer else []


def _logged(attributes: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    if "gen_ai.input.messages" in attributes:
        given, answer = (_parsed(attributes.get(f"gen_ai.{side}.messages")) or [] for side in ("input", "output"))
        return [_genai(each) for each in given], [_genai(each) for each in answer]
    for prompts, completions in _NUMBERED:
        if given := _messages(attributes, prompts):
            answer = [{"role": "assistant"} | each for each in _messages(attributes, completions)]
            return [_openllmetry(each) for each in given], [_openllmetry(each) for each in answer]
    sides = (_messages(attributes, f"llm.{side}_messages") for side in ("input", "output"))
    given, answer = ([_openinference(each["message"]) for each in side] for side in sides)
    return given, answer


def _genai(message: Mapping[str, Any]) -> dict[str, Any]:
    return dict(message) if "content" in message else {"role": message["role"], "parts": message["parts"]}


def _openinference(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = [{"type": "text", **part["message_content"]} for part in message.get("contents") or ()]
    return {
        **{name: message[name] for name in ("role", "tool_call_id", "name") if name in message},
        "content": message.get("content") or parts or "",
        "tool_calls": [call["tool_call"] for call in message.get("tool_calls") or ()],
    }


def _openllmetry(message: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message whose parts, if it has any, are JSON in its text."""
    content = message.get("content")
    if isinstance(content, str) and content.startswith("[{"):
        try:
            parts = json.loads(content)
        except ValueError:
            parts = content
        content = parts if all(isinstance(part, Mapping) and "type" in part for part in parts) else content
    return {**message, "content": content}


def _messages(attributes: Mapping[str, Any], prefix: str) -> list[Any]:
    """Return messages that are a list, JSON, or attributes with numbered names, such as `prefix.0.message.role`."""
    if prefix in attributes:
        return list(_parsed(attributes[prefix]) or ())
    tree: dict[str, Any] = {}
    for name, value in attributes.items():
        if name.startswith(f"{prefix}."):
            *path, last = name.removeprefix(f"{prefix}.").split(".")
            at = tree
            for part in path:
                at = at.setdefault(part, {})
            at[last] = value
    return [_listed(tree[number]) for number in sorted(tree, key=int)]


def _listed(tree: Any) -> Any:
    """Turn mappings with numbered names into lists."""
    if not isinstance(tree, Mapping):
        return tree
    if tree and all(name.isdigit() for name in tree):
        return [_listed(tree[number]) for number in sorted(tree, key=int)]
    return {name: _listed(value) for name, value in tree.items()}


def _parsed(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise UnreadableRecord(
            "the messages of a model call are not JSON: an exporter that limits attributes has cut them (raise "
            "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)"
        ) from None


_NUMBERED = (("gen_ai.prompt", "gen_ai.completion"), ("llm.prompts", "llm.completions"))
"""Prefixes of the messages of OpenLLMetry before the GenAI conventions."""


class _Call(NamedTuple):
    """A model call of a trace."""

    given: list[BaseMessage]
    answer: list[BaseMessage]


def read_spans(source: Path, reading: Reading) -> Iterator[LoggedRun | Refused]:
    """Yield a run for each trace with model calls."""
    with closing(sqlite3.connect("")) as database:
        database.execute("CREATE TABLE spans (trace TEXT, start TEXT, place TEXT, span TEXT)")
        yield from _sort(source, database)
        database.execute("CREATE INDEX by_trace ON spans (trace, start)")
        rows = database.execute("SELECT trace, place, span FROM spans ORDER BY trace, start, rowid")
        for trace, group in groupby(rows, key=lambda row: row[0]):
            yield from _read_trace(trace, group, reading)


def _sort(source: Path, database: sqlite3.Connection) -> Iterator[Refused]:
    """Store the spans of all files; yield the values that are not spans."""
    for path in json_paths(source):
        for line, value, error in json_values(path):
            where = f"{path.name} line {line}"
            try:
                with malformed_is_unreadable():
                    spans = list(spans_in(value)) if not error else []
                    rows = [(span.trace, span.start, where, json.dumps(span._asdict())) for span in spans]
            except UnreadableRecord as unreadable:
                error = str(unreadable)
            if error:
                yield Refused(where, error)
                continue
            database.executemany("INSERT INTO spans VALUES (?, ?, ?, ?)", rows)


def _read_trace(trace: str, rows: Iterator[Sequence[str]], reading: Reading) -> Iterator[LoggedRun | Refused]:
    place = ""
    attributes: dict[str, Any] = {}
    feedback: dict[str, float] = {}
    calls: list[_Call] = []
    measured = _Measured()
    run = None
    try:
        with malformed_is_unreadable():
            for _, where, text in rows:
                place = where
                span = Span(**json.loads(text))
                attributes.update(span.attributes)
                feedback.update(span.evaluations)
                measured.add(span)
                if is_model_call(span):
                    calls = [*calls[:1], *_next_call(calls, span, reading)]
            if calls:
                run = _run_of(trace, place, calls, attributes, feedback, reading)
                run = replace(run, origin=measured.of(run.origin))
    except UnreadableRecord as unreadable:
        yield Refused(f"{place} (trace {trace})", str(unreadable))
        return
    if run is not None:
        yield run


def _next_call(calls: Sequence[_Call], span: Span, reading: Reading) -> list[_Call]:
    """Read a call, which must go on with the conversation of the call before it."""
    given, answer = messages_of_call(span)
    call = _Call(without_prompt(given, system_is_task=reading.system_is_task), answer)
    if calls:
        before = [_content(message) for message in (*calls[-1].given, *calls[-1].answer)]
        if [_content(message) for message in call.given[: len(before)]] != before:
            raise UnreadableRecord(
                "a model call does not go on with the conversation of the call before it: the agent shortens its "
                "messages, or several agents share the trace. Import the agent's checkpointer instead"
            )
    return [call]


@dataclass
class _Measured:
    """Times of a trace, and what its model calls used."""

    started: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    tokens: list[float | None] = field(default_factory=list)
    costs: list[float | None] = field(default_factory=list)

    def add(self, span: Span) -> None:
        self.started.append(moment_of({"": span.start}, ""))
        self.ended.append(moment_of({"": span.end}, ""))
        if is_model_call(span):
            amounts = (amount_of(span.attributes, *names) for names in _TOKENS)
            self.tokens.append(next((amount for amount in amounts if amount is not None), None))
            self.costs.append(amount_of(span.attributes, _COST))

    def of(self, origin: Origin) -> Origin:
        return replace(
            origin, started=self.started[0], ended=max(self.ended), tokens=total_of(self.tokens),
            cost=total_of(self.costs),
        )  # fmt: skip


def _run_of(
    trace: str, place: str, calls: Sequence[_Call], attributes: Mapping[str, Any], feedback: Mapping[str, float],
    reading: Reading,
) -> LoggedRun:  # fmt: skip
    start, conversation = len(calls[0].given), [*calls[-1].given, *calls[-1].answer]
    given, produced = conversation[:start], conversation[start:]
    if not produced:
        raise UnreadableRecord("no message of the agent: nothing to learn from")
    thread = next((str(attributes[name]) for name in _THREADS if attributes.get(name)), trace)
    task = task_of(attributes, reading.task)
    return LoggedRun(
        Origin(thread, f"{place} (trace {trace})", trace, attributes, feedback),
        reader_of(given, task).read(conversation, done=True).trajectory,
        tuple(conversation),
        turn=len(turn_starts(given)),
        over=is_answer(produced[-1]),
        cut_off=not is_answer(produced[-1]),
    )


def _content(message: BaseMessage) -> tuple[Any, ...]:
    calls = [(call["name"], call["args"]) for call in message.tool_calls] if isinstance(message, AIMessage) else []
    return message.type, message.text.strip(), calls


_TOKENS = (
    ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"), ("llm.token_count.total",),
    ("gen_ai.usage.prompt_tokens", "gen_ai.usage.completion_tokens"), ("llm.usage.total_tokens",),
)  # fmt: skip
"""Attributes whose sum is what a model call used."""
_COST = "llm.cost.total"
_THREADS = ("gen_ai.conversation.id", "session.id")
"""Attributes with the id of the conversation."""
