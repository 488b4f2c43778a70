"""Read any source of logs into runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.importing.json_files import json_paths, json_values
from amc_agents.importing.runs import LoggedRun, Refused, UnreadableRecord, malformed_is_unreadable
from amc_agents.importing.settings import Kind, Reading
from amc_agents.importing.sources.atif import runs_of_document
from amc_agents.importing.sources.chat import runs_of_chat
from amc_agents.importing.sources.checkpoints import read_threads
from amc_agents.importing.sources.langsmith import runs_of_trace
from amc_agents.importing.sources.saved_threads import is_postgres, is_sqlite, open_threads
from amc_agents.importing.sources.spans import read_spans
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
    path = json_paths(Path(source))[0]
    first = next(json_values(path), None)
    if first is None:
        raise CheckpointError(f"{path} is empty: expected logs")
    if not isinstance(first.value, Mapping):
        got = first.error or f"a {type(first.value).__name__}"
        raise CheckpointError(f"{path} line {first.line}: expected a JSON object, got {got}. {_NAME_THE_KIND}")
    for kind, marks in _MARKS.items():
        if not marks.isdisjoint(first.value):
            return kind
    raise CheckpointError(
        f"{path} line {first.line}: unknown kind of logs, with the fields {listed(first.value)}. {_NAME_THE_KIND}"
    )


def _read_checkpoints(source: Source, reading: Reading) -> Iterator[LoggedRun | Refused]:
    with open_threads(source) as threads:
        yield from read_threads(threads, reading)


def _read_records(source: Path, runs_of_record: RunsOfRecord, reading: Reading) -> Iterator[LoggedRun | Refused]:
    for path in json_paths(source):
        for line, value, error in json_values(path):
            where = f"{path.name} line {line}"
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
    "spans": {"resourceSpans", "context"},
    "atif": {"steps"},
    "chat": {"messages", "request"},
}
"""Fields by which the first record shows its kind, in the order in which they are looked for."""
_NAME_THE_KIND = (
    "Expected a LangGraph checkpointer, LangSmith runs, OpenTelemetry spans, ATIF, or chats with `messages`; or name "
    "the kind (--from)"
)
