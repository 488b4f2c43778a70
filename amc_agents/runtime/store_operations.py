"""What a posterior asks of a store: its operations, and putting a record unless its key is taken, atomically.

A `BaseStore` cannot do the second. LangGraph's stores in SQLite and Postgres keep everything in one table, `store`,
whose primary key is (prefix, key). One statement is a transaction, and the database lets one of several writers win,
in whatever process they are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, Op
from langgraph.store.memory import InMemoryStore

from amc_agents.concurrency.threads import lock_across_forks

T = TypeVar("T")
Row = tuple[str, str, str]
"""Prefix, key and value as JSON."""
PutIfAbsent = Callable[[tuple[str, ...], str, dict[str, Any]], Awaitable[bool]]
"""Namespace, key and value -> whether it was put there; False: the key is taken."""

SQLITE = "INSERT INTO store (prefix, key, value) VALUES (?, ?, ?) ON CONFLICT (prefix, key) DO NOTHING"
POSTGRES = (
    "INSERT INTO store (prefix, key, value) VALUES (%s, %s, %s::jsonb) "
    "ON CONFLICT (prefix, key) DO NOTHING RETURNING key"
)

_in_memory = lock_across_forks()


async def batch(store: BaseStore, *ops: Op) -> list[Any]:
    """What the store answers to operations, in a thread where it is a store without async methods."""
    try:
        return list(await to_its_end(store.abatch(ops)))
    except NotImplementedError:
        return list(await asyncio.to_thread(store.batch, ops))


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; a cancellation waits for it.

    LangGraph's async store in SQLite would stay in an open transaction, and be of no more use to anybody.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def put_if_absent_in(store: BaseStore) -> PutIfAbsent | None:
    """How to do it in this store; None: there is no way."""
    if hasattr(store, "put_if_absent"):
        # A particle's view of another store.
        own: PutIfAbsent | None = store.put_if_absent
        return own
    # By name, since importing the databases' stores to look costs their drivers.
    names = {one.__name__ for one in type(store).__mro__ if one.__module__.startswith("langgraph.store.")}
    if isinstance(store, InMemoryStore):
        return _in_dict(store)
    for name, execute in EXECUTE.items():
        if name in names:
            return _in_database(partial(execute, store))
    return None


def _in_dict(store: InMemoryStore) -> PutIfAbsent:
    async def put(namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> bool:
        with _in_memory:
            if store.get(namespace, key) is not None:
                return False
            store.put(namespace, key, value, index=False)
            return True

    return put


def _in_database(execute: Callable[[Row], Coroutine[Any, Any, bool]]) -> PutIfAbsent:
    async def put(namespace: tuple[str, ...], key: str, value: dict[str, Any]) -> bool:
        return await to_its_end(execute((".".join(namespace), key, json.dumps(value))))

    return put


async def _execute_async_sqlite(store: Any, row: Row) -> bool:
    async with store.lock, store.conn.execute(SQLITE, row) as cursor:
        return bool(cursor.rowcount == 1)


async def _execute_sqlite(store: Any, row: Row) -> bool:
    def execute() -> bool:
        with store.lock:
            return bool(store.conn.execute(SQLITE, row).rowcount == 1)

    return await asyncio.to_thread(execute)


async def _execute_async_postgres(store: Any, row: Row) -> bool:
    async def execute(connection: Any) -> bool:
        # The row is asked for, so that a pipeline sends what it has.
        return await (await connection.execute(POSTGRES, row)).fetchone() is not None

    if _is_pool(store.conn):
        async with store.conn.connection() as connection:
            return await execute(connection)
    async with store.lock:
        return await execute(store.conn)


async def _execute_postgres(store: Any, row: Row) -> bool:
    def execute() -> bool:
        if _is_pool(store.conn):
            with store.conn.connection() as connection:
                return connection.execute(POSTGRES, row).fetchone() is not None
        with store.lock:
            return store.conn.execute(POSTGRES, row).fetchone() is not None

    return await asyncio.to_thread(execute)


def _is_pool(connection: Any) -> bool:
    return hasattr(connection, "getconn")


EXECUTE: dict[str, Callable[[Any, Row], Coroutine[Any, Any, bool]]] = {
    "AsyncPostgresStore": _execute_async_postgres,
    "AsyncSqliteStore": _execute_async_sqlite,
    "PostgresStore": _execute_postgres,
    "SqliteStore": _execute_sqlite,
}
"""By the name of LangGraph's class: puts a row, and says whether its key was free."""
