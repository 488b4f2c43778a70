"""OpenTelemetry spans of model calls: by the GenAI conventions, or by OpenInference.

A model call records the whole conversation so far, so the last call of a trace holds all of it. The spans of a trace
may be anywhere in the logs: they are first sorted by trace, in a nameless temporary file that no crash leaves behind.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage

from amc_agents.operations.importing.json_files import json_paths, json_values
from amc_agents.operations.importing.records import task_of
from amc_agents.operations.importing.runs import (
    LoggedRun,
    Origin,
    Refused,
    UnreadableRecord,
    is_answer,
    malformed_is_unreadable,
    reader_of,
    turn_starts,
    without_prompt,
)
from amc_agents.operations.importing.settings import Reading
from amc_agents.operations.importing.sources.otlp import Span, spans_in
from amc_agents.operations.importing.sources.span_messages import is_model_call, messages_of_call


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
    run = None
    try:
        with malformed_is_unreadable():
            for _, where, text in rows:
                place = where
                span = Span(**json.loads(text))
                attributes.update(span.attributes)
                feedback.update(span.evaluations)
                if is_model_call(span):
                    calls = [*calls[:1], *_next_call(calls, span, reading)]
            if calls:
                run = _run_of(trace, place, calls, attributes, feedback, reading)
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


_THREADS = ("gen_ai.conversation.id", "session.id")
"""Attributes with the id of the conversation."""
