"""Records of threads in the checkpointers that can compare and swap: text by key (docs/durable.md).

A checkpointer of its own kind takes part by the two methods of `Register`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, ExitStack
from importlib import import_module
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary, WeakSet

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver


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
