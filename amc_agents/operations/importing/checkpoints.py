"""Threads of a LangGraph checkpointer: every call of the agent, read where `amc()` would pause it.

The checkpoints of SQLite, PostgreSQL or any saver are read without writing, and by short queries, so that the agent in
production can go on writing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    SystemMessageChunk,
    ToolMessage,
    ToolMessageChunk,
)
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from typing_extensions import override

from amc_agents.errors import CheckpointError, MissingExtra
from amc_agents.messages import MessageReader, as_message
from amc_agents.operations.importing.logged_runs import (
    LoggedRun,
    Origin,
    Reading,
    Refused,
    UnreadableRecord,
    is_answer,
    malformed_is_unreadable,
    reader_of,
    runs_of_conversation,
    task_of,
    text_of,
    total_of,
)
from amc_agents.quoting import excerpt


class SavedState(NamedTuple):
    """A checkpoint: the state of an agent between two supersteps."""

    id: str
    source: str
    """"input" before the first superstep of a call; "loop", "update" or "fork" later."""
    values: Mapping[str, Any]
    """Channels of the graph, LangGraph's own included."""
    seen: Mapping[str, Any]
    """Node -> versions of the channels that it has seen."""
    versions: Mapping[str, Any] = MappingProxyType({})
    """Channel -> its version, which changes with every write."""
    time: str = ""
    """When it was saved."""

    @property
    def finished(self) -> bool:
        """Whether no node is due."""
        return not (self.values.get(_TASKS) or any(map(_is_due, self.values, self.values.values())))

    def nodes_since(self, before: SavedState) -> set[str]:
        """Return the nodes that ran between the state `before` and this one."""
        sent = {send.node for send in before.values.get(_TASKS) or ()}
        return sent | {node for node, seen in self.seen.items() if before.seen.get(node) != seen}


class PlainSerializer(JsonPlusSerializer):
    """Builds messages, LangGraph's own values and plain data; of everything else, its fields stay as data.

    A database may come from anyone, and the format of checkpoints can name any callable with its arguments.
    """

    def __init__(self) -> None:
        super().__init__(allowed_msgpack_modules=None)

    @override
    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        kind, content = data
        # LangGraph's older format may build any of LangChain's classes.
        return json.loads(content, object_hook=_message_or_data) if kind == "json" else super().loads_typed(data)


def _message_or_data(value: dict[str, Any]) -> Any:
    path = value.get("id")
    if value.get("lc") not in (1, 2) or value.get("type") != "constructor" or not isinstance(path, list):
        return value
    kwargs = value.get("kwargs")
    kind = _MESSAGES.get(path[-1] if path and isinstance(path[-1], str) else "")
    return kind(**kwargs) if kind is not None and isinstance(kwargs, dict) else kwargs


class SavedThreads(Protocol):
    """The threads of a checkpointer."""

    def newest(self) -> Iterator[tuple[str, str]]:
        """Yield the id of every thread and of its newest checkpoint."""
        ...

    def history(self, thread: str) -> Iterator[SavedState]:
        """Yield the checkpoints that lead to the newest one, from the oldest on; abandoned branches are left out."""
        ...


class SqliteThreads:
    """The threads of LangGraph's SQLite checkpointer.

    Args:
        connection: opened by `open_sqlite`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._serializer = PlainSerializer()

    def newest(self) -> Iterator[tuple[str, str]]:
        """See `SavedThreads`."""
        query = "SELECT thread_id, MAX(checkpoint_id) FROM checkpoints WHERE checkpoint_ns = '' AND thread_id > ? "
        query += f"GROUP BY thread_id ORDER BY thread_id LIMIT {_AT_ONCE}"
        last = ""
        while threads := self._connection.execute(query, (last,)).fetchall():
            yield from threads
            last = threads[-1][0]

    def history(self, thread: str) -> Iterator[SavedState]:
        """See `SavedThreads`."""
        query = "SELECT checkpoint_id, parent_checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ''"
        for checkpoint in lineage(dict(self._connection.execute(query, (thread,)))):
            yield self._state(thread, checkpoint)

    def _state(self, thread: str, checkpoint: str) -> SavedState:
        query = "SELECT type, checkpoint, metadata FROM checkpoints "
        query += "WHERE thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ?"
        kind, content, metadata = self._connection.execute(query, (thread, checkpoint)).fetchone()
        try:
            source = json.loads(metadata or "{}").get("source", "")
            return _state_of(checkpoint, source, self._serializer.loads_typed((kind, content)))
        except Exception as error:  # a checkpoint may hold objects of any class
            raise UnreadableRecord(f"a checkpoint cannot be decoded ({type(error).__name__})") from error


class SaverThreads:
    """The threads of any checkpoint saver.

    Args:
        saver: the saver.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any]) -> None:
        self._saver = saver

    def newest(self) -> Iterator[tuple[str, str]]:
        """See `SavedThreads`."""
        newest: dict[str, str] = {}
        for saved in self._saver.list(None):
            place = saved.config["configurable"]
            if not place.get("checkpoint_ns"):
                thread = place["thread_id"]
                newest[thread] = max(newest.get(thread, ""), place["checkpoint_id"])
        yield from sorted(newest.items())

    def history(self, thread: str) -> Iterator[SavedState]:
        """See `SavedThreads`."""
        config: RunnableConfig = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
        parents = {}
        for saved in self._saver.list(config):
            parent = saved.parent_config
            parents[saved.config["configurable"]["checkpoint_id"]] = (
                parent["configurable"]["checkpoint_id"] if parent else None
            )
        for checkpoint in lineage(parents):
            tuple_ = self._saver.get_tuple({"configurable": {**config["configurable"], "checkpoint_id": checkpoint}})
            if tuple_ is not None:
                yield _state_of(checkpoint, tuple_.metadata.get("source", ""), tuple_.checkpoint)


class PostgresThreads(SaverThreads):
    """The threads of LangGraph's PostgreSQL checkpointer.

    Args:
        saver: a `PostgresSaver`.
        connection: its connection.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], connection: Any) -> None:
        super().__init__(saver)
        self._connection = connection

    def newest(self) -> Iterator[tuple[str, str]]:
        """See `SavedThreads`."""
        query = "SELECT thread_id, MAX(checkpoint_id) AS newest FROM checkpoints WHERE checkpoint_ns = '' "
        query += f"AND thread_id > %s GROUP BY thread_id ORDER BY thread_id LIMIT {_AT_ONCE}"
        last = ""
        while threads := self._connection.execute(query, (last,)).fetchall():
            yield from ((row["thread_id"], row["newest"]) for row in threads)
            last = threads[-1]["thread_id"]


def lineage(parents: Mapping[str, str | None]) -> list[str]:
    """Return the checkpoints that lead to the newest one, from the oldest on.

    Args:
        parents: checkpoint -> the one before it. Ids grow with time.
    """
    line: list[str] = []
    at = max(parents, default=None)
    while at is not None and at in parents:
        line.append(at)
        at = parents[at]
    return line[::-1]


@contextmanager
def open_threads(source: str | Path | BaseCheckpointSaver[Any]) -> Iterator[SavedThreads]:
    """Open a checkpointer for reading: a saver, the address of a PostgreSQL database, or an SQLite file.

    Raises:
        CheckpointError: it cannot be opened, or has no checkpoints.
        MissingExtra: PostgreSQL's driver or LangGraph's saver is not installed.
    """
    if isinstance(source, BaseCheckpointSaver):
        yield SaverThreads(source)
    elif is_postgres(source):
        with _postgres(str(source)) as threads:
            yield threads
    else:
        with _sqlite(Path(source)) as threads:
            yield threads


def is_postgres(source: object) -> bool:
    """Return whether a source is the address of a PostgreSQL database."""
    return isinstance(source, str) and source.startswith(("postgres://", "postgresql://"))


def is_sqlite(path: Path) -> bool:
    """Return whether a file is an SQLite database.

    Raises:
        CheckpointError: it is one, but its name does not say so.
    """
    if not path.is_file():
        return False
    with path.open("rb") as file:
        found = file.read(16) == b"SQLite format 3\0"
    if found and path.suffix.lower() not in _SUFFIXES:
        raise CheckpointError(
            f"{path} is an SQLite database, which its name does not say: if it is the database of a LangGraph "
            f"checkpointer, import it with --from checkpoints, or rename it to end in {_SUFFIXES[0]}"
        )
    return found


@contextmanager
def _sqlite(path: Path) -> Iterator[SqliteThreads]:
    connection = None
    try:
        # Read-only: the file belongs to an agent that may be running.
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30)
        yield SqliteThreads(connection)
    except sqlite3.Error as error:
        raise CheckpointError(
            f"{path} is not a readable database of LangGraph's SqliteSaver ({error}): expected its file, and beside it "
            "the files with -wal and -shm, if there are any"
        ) from error
    finally:
        if connection is not None:
            connection.close()


@contextmanager
def _postgres(address: str) -> Iterator[PostgresThreads]:
    try:
        psycopg: Any = import_module("psycopg")
        rows: Any = import_module("psycopg.rows")
        savers: Any = import_module("langgraph.checkpoint.postgres")
    except ImportError as error:
        raise MissingExtra(error.name or "psycopg", "postgres") from error
    try:
        with psycopg.connect(
            address, autocommit=True, prepare_threshold=0, row_factory=rows.dict_row,
            options="-c default_transaction_read_only=on",
        ) as connection:  # fmt: skip
            yield PostgresThreads(savers.PostgresSaver(connection, serde=PlainSerializer()), connection)
    except psycopg.Error as error:
        raise CheckpointError(
            f"{excerpt(address)} cannot be read ({excerpt(str(error), 100)}): expected a database in which LangGraph's "
            "PostgresSaver was set up"
        ) from error


def _state_of(checkpoint_id: str, source: str, checkpoint: Mapping[str, Any]) -> SavedState:
    return SavedState(
        checkpoint_id, source, checkpoint["channel_values"], checkpoint.get("versions_seen", {}),
        checkpoint.get("channel_versions", {}), text_of(checkpoint, "ts"),
    )  # fmt: skip


def _is_due(channel: str, value: Any) -> bool:
    """Return whether a channel of LangGraph's own triggers a node in the next superstep."""
    if channel.startswith("join:"):
        # "join:first+second:node" holds the nodes that have arrived.
        return bool(value) and set(value) == set(channel.split(":")[1].split("+"))
    return channel.startswith("branch:") or channel == "__start__"


_TASKS = "__pregel_tasks"
"""Channel of tasks that were sent to nodes directly."""
_SUFFIXES = (".sqlite", ".sqlite3", ".db", ".db3")
_MESSAGES: dict[str, type[BaseMessage]] = {
    kind.__name__: kind
    for kind in (
        *(AIMessage, HumanMessage, SystemMessage, ToolMessage, FunctionMessage, ChatMessage),
        *(AIMessageChunk, HumanMessageChunk, SystemMessageChunk, ToolMessageChunk),
    )
}
_AT_ONCE = 500
"""Threads listed by a query."""


def read_threads(threads: SavedThreads, reading: Reading) -> Iterator[LoggedRun | Refused]:
    """Yield the runs of every thread, except those that `reading.known` knows in their newest version."""
    for thread, newest in threads.newest():
        if reading.known(thread, newest):
            continue
        try:
            with malformed_is_unreadable():
                yield from _runs_of_thread(thread, threads.history(thread), reading)
        except UnreadableRecord as error:
            yield Refused(_where(thread), str(error))


def _runs_of_thread(thread: str, history: Iterator[SavedState], reading: Reading) -> Iterator[LoggedRun]:
    call: _Call | None = None
    for state in history:
        if call is None and state.source != "input":
            yield from _without_history(thread, [state, *history][-1], reading)
            return
        if state.source == "input":
            if call is not None:
                yield from call.end(thread, reading, over=True)
            call = _Call(0 if call is None else call.number + 1, state, state)
        elif call is not None:
            call.read(state, reading)
    if call is not None:
        yield from call.end(thread, reading, over=call.last.finished)


@dataclass
class _Call:
    """A call of the agent, while its checkpoints are read from the oldest to the newest."""

    number: int
    first: SavedState
    last: SavedState
    reader: MessageReader | None = None
    version: Any = None
    """Version of the channel of messages at the last read."""

    def read(self, state: SavedState, reading: Reading) -> None:
        """Read the messages where a run would: at the input, and after the nodes that end a step."""
        if self.reader is None:
            self.version = state.versions.get("messages")
            self.reader = reader_of(_messages(state), _task(state, reading))
        elif not state.nodes_since(self.last).isdisjoint(reading.step_after):
            stepped = state.versions.get("messages") != self.version
            self.version = state.versions.get("messages")
            self.reader = self.reader.read(_messages(state), stepped=stepped)
        self.last = state

    def end(self, thread: str, reading: Reading, *, over: bool) -> Iterator[LoggedRun]:
        """Yield the call as a run, unless it was stopped before its first superstep."""
        if self.reader is None:
            return
        messages = _messages(self.last)
        trajectory = self.reader.read(messages, done=True).trajectory
        answered = bool(messages) and is_answer(messages[-1])
        cut_off = not answered and not self.last.finished
        said = [message for message in messages if isinstance(message, AIMessage)][-len(trajectory.steps) :]
        used = [message.usage_metadata and message.usage_metadata.get("total_tokens") for message in said]
        origin = replace(
            _origin(thread, self.last), started=self.first.time, ended=self.last.time,
            # An agent that drops messages drops their usage.
            tokens=total_of(used) if len(said) == len(trajectory.steps) else None,
        )  # fmt: skip
        yield LoggedRun(origin, trajectory, tuple(messages), self.number, over, cut_off)


def _without_history(thread: str, newest: SavedState, reading: Reading) -> Iterator[LoggedRun]:
    """Read a thread of which only the end of each call is saved (durability="exit"), or whose history was pruned."""
    messages = _messages(newest)
    yield from runs_of_conversation(
        messages, _origin(thread, newest), split=reading.turns != "one", task=_task(newest, reading),
        over=newest.finished,
    )  # fmt: skip


def _messages(state: SavedState) -> list[BaseMessage]:
    messages = state.values.get("messages")
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        raise UnreadableRecord(
            "the state has no list of `messages`: expected an agent with messages, as amc() wraps without trajectory="
        )
    return [as_message(message) for message in messages]


def _task(state: SavedState, reading: Reading) -> str:
    return task_of(state.values, reading.task)


def _origin(thread: str, state: SavedState) -> Origin:
    return Origin(thread, _where(thread), record=_visible(state.values), version=state.id)


def _visible(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith(("__", "branch:"))}


def _where(thread: str) -> str:
    return f"thread {thread}"
