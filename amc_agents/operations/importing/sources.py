"""Read any source of logs into runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.base import BaseCheckpointSaver

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.operations.importing.checkpoints import is_postgres, is_sqlite, open_threads, read_threads
from amc_agents.operations.importing.gathering import Record, records_in, records_of
from amc_agents.operations.importing.json_files import json_paths
from amc_agents.operations.importing.json_records import (
    is_benchmark,
    runs_of_chat,
    runs_of_document,
    runs_of_trace,
)
from amc_agents.operations.importing.logged_runs import (
    Kind,
    LoggedRun,
    Reading,
    Refused,
    UnreadableRecord,
    malformed_is_unreadable,
    turn_starts,
)
from amc_agents.operations.importing.spans import read_spans
from amc_agents.quoting import listed, quoted

RunsOfRecord = Callable[[Mapping[str, Any], str, Reading], Iterator[LoggedRun]]
"""(record, place, settings) -> its runs. Raises `UnreadableRecord`."""


Source = str | Path | BaseCheckpointSaver[Any]
"""A file, a folder, a postgresql:// address, or a checkpoint saver of LangGraph."""


def read(source: Source, reading: Reading | None = None) -> Iterator[LoggedRun | Refused]:
    """Read logs of an agent, one record at a time, into the trajectories that a run of `amc` would have seen.

    Args:
        source: a file, a folder of files, the postgresql:// address of a LangGraph checkpointer, or a checkpoint saver.
        reading: how to read it; None: the defaults.

    Yields:
        Runs, and the records that cannot be read, each with its place and the reason.

    Raises:
        CheckpointError: the source does not exist, or its kind is not recognised.
    """
    reading = reading or Reading()
    kind = reading.kind or kind_of(source)
    if kind == "checkpoints":
        return _read_checkpoints(source, reading)
    if not isinstance(source, str | Path):
        raise ConfigurationError(f"a checkpoint saver was given, but the kind of logs is {quoted(kind)}: leave it out")
    if kind == "spans":
        return read_spans(Path(source), reading)
    return _read_records(Path(source), RECORDS[kind], reading)


def kind_of(source: Source) -> Kind:
    """Recognise the kind of a source by its content.

    Raises:
        CheckpointError: the source does not exist, or its kind is not recognised.
    """
    if isinstance(source, BaseCheckpointSaver) or is_postgres(source) or is_sqlite(Path(source)):
        return "checkpoints"
    seen: list[Record] = []
    for record in islice(records_in(Path(source)), _SAMPLE):
        kind = _kind_of_record(record.value) if isinstance(record.value, Mapping) else None
        if kind is not None:
            return kind
        seen.append(record)
    if not seen:
        raise CheckpointError(f"{source} is empty: expected logs")
    first = next((record for record in seen if isinstance(record.value, Mapping)), seen[0])
    if not isinstance(first.value, Mapping):
        got = first.error or f"expected a JSON object, got a {type(first.value).__name__}"
        raise CheckpointError(f"{source}, {first.where}: {got}. {_NAME_THE_KIND}")
    raise CheckpointError(
        f"{source}, {first.where}: unknown kind of logs, with the fields {listed(first.value)}. {_NAME_THE_KIND}"
    )


def _kind_of_record(record: Mapping[str, Any]) -> Kind | None:
    inner = record.get("trajectory")
    fields = {*record, *(inner if isinstance(inner, Mapping) else ())}
    # A chat may name its trace, too.
    if "attributes" in fields and not _TRACES.isdisjoint(fields):
        return "spans"
    return next((kind for kind, marks in _MARKS.items() if not marks.isdisjoint(fields)), None)


class Turns(NamedTuple):
    """What a user message in the middle of a conversation does in a source."""

    turns: Literal["each", "one"] | None
    """As in `Reading`."""
    one_run_each: bool = False
    """Whether conversations with several user messages are one run each, although nobody asked for it."""


def turns_in(source: Source, reading: Reading, has_outcome: Callable[[Mapping[str, Any]], bool]) -> Turns:
    """Decide from some of the records what a user message in the middle of a conversation does.

    Where the world answers as the user, taking each answer as a run makes many runs of one, each with all that came
    before as its instruction.

    Args:
        source: as in `read`.
        reading: with its kind.
        has_outcome: whether there is one outcome for the whole conversation of a record.

    Raises:
        CheckpointError: the source does not exist.
        ConfigurationError: it cannot be decided.
    """
    if reading.turns is not None or reading.kind not in ("atif", "chat") or not isinstance(source, str | Path):
        return Turns(reading.turns)
    told = [(record, _conversation(record, reading)) for record in _some_records(Path(source))]
    open_ = [(record, said) for record, said in told if not _is_benchmark(record)]
    n_turns = sum(len(turn_starts(said)) for _, said in open_)
    if n_turns <= _MANY_TURNS * len(open_):
        return Turns(None, any(len(turn_starts(said)) > 1 for record, said in told if _is_benchmark(record)))
    if all(_alternates(said) and has_outcome(record) for record, said in open_):
        return Turns("one", one_run_each=True)
    raise ConfigurationError(
        f"{source}: the conversations have {n_turns / len(open_):.0f} turns each. Is every answer to a user a run of "
        "the agent (--turns each), or is a conversation one run, in which a world or a simulated user answers as the "
        "user (--turns one)? Nothing was imported"
    )


def _some_records(source: Path) -> Iterator[Mapping[str, Any]]:
    paths = json_paths(source)
    records = (each for path in paths[:: 1 + len(paths) // _SAMPLE] for each in islice(records_of(path), _SAMPLE))
    return (each.value for each in islice(records, _SAMPLE) if isinstance(each.value, Mapping))


def _conversation(record: Mapping[str, Any], reading: Reading) -> Sequence[BaseMessage]:
    """Return the messages of a record; none if it cannot be read."""
    assert reading.kind is not None
    try:
        with malformed_is_unreadable():
            return next(RECORDS[reading.kind](record, "", replace(reading, turns="one"))).messages
    except (UnreadableRecord, StopIteration):
        return ()


def _is_benchmark(record: Mapping[str, Any]) -> bool:
    return is_benchmark(record) or isinstance(record.get("trajectory"), Mapping)


def _alternates(messages: Sequence[BaseMessage]) -> bool:
    """Whether user and agent speak in turn, without tools."""
    said = [message for message in messages if not isinstance(message, SystemMessage)]
    return all(
        isinstance(message, AIMessage if number % 2 else HumanMessage) and not getattr(message, "tool_calls", ())
        for number, message in enumerate(said)
    )


def _read_checkpoints(source: Source, reading: Reading) -> Iterator[LoggedRun | Refused]:
    with open_threads(source) as threads:
        yield from read_threads(threads, reading)


def _read_records(source: Path, runs_of_record: RunsOfRecord, reading: Reading) -> Iterator[LoggedRun | Refused]:
    for where, value, error in records_in(source):
        if error or not isinstance(value, Mapping):
            yield Refused(where, error or f"expected a JSON object, got a {type(value).__name__}")
            continue
        try:
            with malformed_is_unreadable():
                yield from runs_of_record(value, where, reading)
        except UnreadableRecord as unreadable:
            yield Refused(where, str(unreadable))


RECORDS: dict[Kind, RunsOfRecord] = {"atif": runs_of_document, "chat": runs_of_chat, "langsmith": runs_of_trace}
"""The sources whose every JSON object is read alone."""
_MARKS: dict[Kind, set[str]] = {
    "langsmith": {"run_type", "dotted_order"},
    "spans": {"resourceSpans", "context", "context.trace_id"},
    "atif": {"steps"},
    "chat": {"messages", "traj", "request", "input"},
}
"""Fields by which the first record shows its kind, in the order in which they are looked for."""
_TRACES = {"trace_id", "traceId"}
_SAMPLE = 20
"""Records by which the kind of logs and its turns are recognised."""
_MANY_TURNS = 3
"""Turns a conversation, on average, above which it is not taken for granted that each is a run."""
_NAME_THE_KIND = (
    "Expected a LangGraph checkpointer, LangSmith runs, OpenTelemetry spans, ATIF, or chats with `messages`; or name "
    "the kind (--from)"
)
