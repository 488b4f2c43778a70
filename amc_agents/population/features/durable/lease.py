"""One caller of a thread at a time, and the newest point that counts (docs/durable.md).

Each thread has a record, which lies in the checkpointer's own database and is changed only by a compare-and-swap.
While a call runs, the record names its process and how long the lease lasts. It also names the newest durable point, so
a point counts only once the swap that names it has succeeded, and that swap fails as soon as another caller has taken
the thread over: a commit call is journaled by the same swap that checks the lease. Clocks only decide when a caller may
be taken over; a wrong clock can end a run, but cannot repeat a commit.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakSet

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents.errors import ThreadHeld

LASTS_S = 60.0
"""Seconds after which a lease ends that is not renewed."""
_RENEWED_S = LASTS_S / 4
_LARGEST_SKEW_S = 3600.0
"""A lease that ends later than this from now was written by a clock that is wrong, and is void."""

_held: set[str] = set()
"""The leases that calls of this process hold."""


@dataclass(frozen=True)
class Journal:
    """What a thread's record says of its last unfinished run."""

    head: str | None = None
    """Id of the newest point that counts; None: there is none."""
    made: int = 0
    """Number of commit calls up to this point."""
    uncertain: bool = False
    """Whether the last of them may have run."""


@dataclass(frozen=True)
class Holder:
    """The call that holds a thread."""

    lease: str
    """Id of the lease; empty: nobody holds the thread."""
    process_id: int
    started: str
    """When the process was started, as the system counts; empty: unknown."""
    host: str
    place: str
    """Identifies the processes of which this host knows whether they live."""
    until: float
    """When the lease ends unless it is renewed: seconds since 1970."""

    def lives(self) -> bool:
        """Whether the call may still run."""
        if self.place == _place():
            if (self.process_id, self.started) == (os.getpid(), _started(os.getpid())):
                return self.lease in _held
            if self.started and _started(self.process_id) != self.started:
                return False
        return 0 < self.until - time.time() <= _LARGEST_SKEW_S


class Lease:
    """The right of a call to run a thread, from `take` to `release`."""

    def __init__(self, register: Register, thread_id: str, key: str, text: str | None, journal: Journal) -> None:
        self._register, self._thread_id, self._key, self._text = register, thread_id, key, text
        self._id = uuid4().hex
        self._turn = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self.journal = journal

    @classmethod
    async def take(
        cls, saver: BaseCheckpointSaver[Any], thread_id: str, key: str, *, asynchronous: bool
    ) -> Lease | None:
        """Take the lease of a thread; None: its checkpointer cannot keep one.

        Args:
            saver: the graph's checkpointer.
            thread_id: the caller's thread, for errors.
            key: of the record: the thread of the points.
            asynchronous: whether the graph is called by its async methods.

        Raises:
            ThreadHeld: another call runs the thread.
        """
        register = register_of(saver, asynchronous=asynchronous)
        if register is None:
            return None
        while True:
            text = await register.aread_record(key)
            holder, journal = _parsed(text)
            # Files of /proc are read in a thread: LangGraph's server forbids it on the event loop.
            if holder is not None and await asyncio.to_thread(holder.lives):
                raise _held_by(thread_id, holder)
            lease = cls(register, thread_id, key, text, journal)
            _held.add(lease._id)
            try:
                if await lease._swap(await asyncio.to_thread(lease._record)):
                    lease._renewal = asyncio.create_task(lease._renew())
                    return lease
            except BaseException:
                _held.discard(lease._id)
                raise
            _held.discard(lease._id)

    async def record(self, journal: Journal) -> None:
        """Change the journal, if no other caller has taken the thread over.

        Raises:
            ThreadHeld: one has.
        """
        before, self.journal = self.journal, journal
        if not await self._swap(await asyncio.to_thread(self._record)):
            self.journal = before
            raise await self._lost()

    async def check(self) -> None:
        """Raise `ThreadHeld` if another caller has taken the thread over."""
        if await self._register.aread_record(self._key) != self._text:
            raise await self._lost()

    async def release(self, *, finished: bool) -> None:
        """Give the thread back.

        Args:
            finished: whether the run has its result, and its result is checkpointed.
        """
        if self._id not in _held:
            return
        _held.discard(self._id)
        if self._renewal is not None:
            self._renewal.cancel()
        # A run without commits has nothing to protect: its newest point is the one to go on with.
        keep = self.journal.made > 0 and not finished
        with suppress(Exception):  # A record that stays names a lease which this process does not hold.
            await self._swap(json.dumps({"journal": asdict(self.journal)}) if keep else None)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(_RENEWED_S)
            with suppress(Exception):  # If the database is busy, the next renewal may succeed.
                await self._swap(await asyncio.to_thread(self._record))

    async def _swap(self, new: str | None) -> bool:
        async with self._turn:
            swapped = await self._register.aswap_record(self._key, self._text, new)
            if swapped:
                self._text = new
            return swapped

    def _record(self) -> str:
        holder = Holder(
            self._id, os.getpid(), _started(os.getpid()), socket.gethostname(), _place(), time.time() + LASTS_S
        )
        return json.dumps({"holder": asdict(holder), "journal": asdict(self.journal)})

    async def _lost(self) -> ThreadHeld:
        holder, _ = _parsed(await self._register.aread_record(self._key))
        return _held_by(self._thread_id, holder, lost=True)


def _parsed(text: str | None) -> tuple[Holder | None, Journal]:
    record = {} if text is None else json.loads(text)
    holder = record.get("holder")
    return None if holder is None else Holder(**holder), Journal(**record.get("journal", {}))


def _held_by(thread_id: str, holder: Holder | None, *, lost: bool = False) -> ThreadHeld:
    who = None if holder is None else f"process {holder.process_id} on {holder.host}"
    return ThreadHeld(thread_id, who, None if holder is None else holder.until, lost=lost)


def _started(process_id: int) -> str:
    """Return when a process was started, in ticks since the host's start; empty: it has ended, or this is not Linux."""
    try:
        status = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if status[0] in "ZX" else status[19]


def _place() -> str:
    """Identify the running system and its process numbers, which containers on a host do not share."""
    return _place_of(os.getpid())


@cache
def _place_of(process_id: int) -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink(f'/proc/{process_id}/ns/pid')}"
    except OSError:
        return socket.gethostname()


@runtime_checkable
class Register(Protocol):
    """Keeps a text by key, durably, for all processes that use the checkpointer."""

    async def aread_record(self, key: str) -> str | None:
        """Return the text; None: there is none."""
        ...

    async def aswap_record(self, key: str, old: str | None, new: str | None) -> bool:
        """Replace the text if it is still `old`, and return whether it was; None: no text. Durable when it returns."""
        ...


def register_of(saver: BaseCheckpointSaver[Any], *, asynchronous: bool) -> Register | None:
    """Return the register of a checkpointer; None: it cannot compare and swap.

    Args:
        saver: the checkpointer.
        asynchronous: whether its async methods are used on the running event loop.
    """
    if isinstance(saver, Register):
        return saver
    if isinstance(saver, InMemorySaver):
        return _InMemory(saver)
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(saver).__mro__}
    for name, execute in _DATABASES.items():
        if name in kinds:
            return _Table(saver, execute, asynchronous=asynchronous)
    return None


_memory_lock = threading.Lock()
_in_memory: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()


class _InMemory:
    def __init__(self, saver: InMemorySaver) -> None:
        with _memory_lock:
            self._records = _in_memory.setdefault(saver, {})

    async def aread_record(self, key: str) -> str | None:
        return self._records.get(key)

    async def aswap_record(self, key: str, old: str | None, new: str | None) -> bool:
        with _memory_lock:
            if self._records.get(key) != old:
                return False
            self._records.pop(key, None)
            if new is not None:
                self._records[key] = new
            return True


_TABLE = "CREATE TABLE IF NOT EXISTS amc_leases (thread_id TEXT PRIMARY KEY, record TEXT NOT NULL)"
_READ = "SELECT record FROM amc_leases WHERE thread_id = ?"
_INSERT = "INSERT INTO amc_leases (thread_id, record) VALUES (?, ?) ON CONFLICT DO NOTHING"
_UPDATE = "UPDATE amc_leases SET record = ? WHERE thread_id = ? AND record = ?"
_DELETE = "DELETE FROM amc_leases WHERE thread_id = ? AND record = ?"

Execute = Callable[..., Awaitable[list[tuple[Any, ...]]]]
"""(checkpointer, statement, arguments, asynchronous=) -> the rows that it returned, or one for each that it changed."""
_prepared: WeakSet[Any] = WeakSet()


class _Table:
    """The table `amc_leases` in a checkpointer's database, through its connection."""

    def __init__(self, saver: Any, execute: Execute, *, asynchronous: bool) -> None:
        self._saver, self._execute, self._asynchronous = saver, execute, asynchronous

    async def aread_record(self, key: str) -> str | None:
        rows = await self._run(_READ, key)
        return rows[0][0] if rows else None

    async def aswap_record(self, key: str, old: str | None, new: str | None) -> bool:
        if old is None:
            return new is None or bool(await self._run(_INSERT, key, new))
        if new is None:
            return bool(await self._run(_DELETE, key, old))
        return bool(await self._run(_UPDATE, new, key, old))

    async def _run(self, statement: str, *arguments: str) -> list[tuple[Any, ...]]:
        if self._saver not in _prepared:
            await self._execute(self._saver, _TABLE, (), asynchronous=self._asynchronous)
            _prepared.add(self._saver)
        return await self._execute(self._saver, statement, arguments, asynchronous=self._asynchronous)


async def _sqlite(saver: Any, statement: str, arguments: Sequence[str], **_: bool) -> list[tuple[Any, ...]]:
    def execute() -> list[tuple[Any, ...]]:
        with saver.cursor() as cursor:
            cursor.execute(statement, arguments)
            return list(cursor.fetchall()) if statement is _READ else [()] * cursor.rowcount

    return await asyncio.to_thread(execute)


async def _async_sqlite(
    saver: Any, statement: str, arguments: Sequence[str], *, asynchronous: bool
) -> list[tuple[Any, ...]]:
    async def execute() -> list[tuple[Any, ...]]:
        await saver.setup()
        async with saver.lock, saver.conn.execute(statement, arguments) as cursor:
            rows = [*await cursor.fetchall()] if statement is _READ else [()] * cursor.rowcount
            await saver.conn.commit()
            return rows

    return await _where_langgraph_does(saver, execute, asynchronous=asynchronous)


async def _postgres(saver: Any, statement: str, arguments: Sequence[str], **_: bool) -> list[tuple[Any, ...]]:
    tuple_row = import_module("psycopg.rows").tuple_row

    def execute() -> list[tuple[Any, ...]]:
        with ExitStack() as opened:
            opened.enter_context(saver.lock)
            connection = saver.conn
            if hasattr(connection, "getconn"):  # A pool.
                connection = opened.enter_context(connection.connection())
            opened.enter_context(connection.transaction())
            cursor = opened.enter_context(connection.cursor(row_factory=tuple_row))
            cursor.execute(_for_postgres(statement), arguments or None)
            return [] if statement is _TABLE else list(cursor.fetchall())

    return await asyncio.to_thread(execute)


async def _async_postgres(
    saver: Any, statement: str, arguments: Sequence[str], *, asynchronous: bool
) -> list[tuple[Any, ...]]:
    tuple_row = import_module("psycopg.rows").tuple_row

    async def execute() -> list[tuple[Any, ...]]:
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(saver.lock)
            connection = saver.conn
            if hasattr(connection, "getconn"):  # A pool.
                connection = await opened.enter_async_context(connection.connection())
            await opened.enter_async_context(connection.transaction())
            cursor = await opened.enter_async_context(connection.cursor(row_factory=tuple_row))
            await cursor.execute(_for_postgres(statement), arguments or None)
            return [] if statement is _TABLE else [*await cursor.fetchall()]

    return await _where_langgraph_does(saver, execute, asynchronous=asynchronous)


async def _where_langgraph_does(
    saver: Any, work: Callable[[], Coroutine[Any, Any, list[tuple[Any, ...]]]], *, asynchronous: bool
) -> list[tuple[Any, ...]]:
    """Run work with an async checkpointer: on this loop, or in a sync call on the loop on which it was made."""
    if asynchronous:
        return await work()
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), saver.loop))


def _for_postgres(statement: str) -> str:
    if statement is _TABLE:
        # Two processes that create a table at the same time would fail.
        return f"DO $$ BEGIN PERFORM pg_advisory_xact_lock(7270263119); {statement}; END $$"
    return statement.replace("?", "%s") + (" RETURNING 1" if statement is not _READ else "")


_DATABASES: dict[str, Execute] = {
    "langgraph.checkpoint.sqlite.SqliteSaver": _sqlite,
    "langgraph.checkpoint.sqlite.aio.AsyncSqliteSaver": _async_sqlite,
    "langgraph.checkpoint.postgres.PostgresSaver": _postgres,
    "langgraph.checkpoint.postgres.aio.AsyncPostgresSaver": _async_postgres,
}
