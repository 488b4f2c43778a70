"""Operations on LangGraph stores, from async code and safe to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, Item, Op, SearchOp

T = TypeVar("T")

ALL = 1_000_000
"""Limit of a search for every item; `SearchOp` requires a limit."""


async def batch(store: BaseStore, *ops: Op) -> list[Any]:
    """Run operations on a store; a store without async methods runs them in a thread.

    Returns:
        One result per operation.
    """
    try:
        return list(await to_its_end(store.abatch(ops)))
    except NotImplementedError:
        return list(await asyncio.to_thread(store.batch, ops))


async def items_of(store: BaseStore, namespace: tuple[str, ...]) -> list[Item]:
    """Read every item of one namespace, without those of the namespaces below it."""
    [items] = await batch(store, SearchOp(namespace, limit=ALL, refresh_ttl=False))
    return [item for item in items if item.namespace == namespace]


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await the work; a cancellation takes effect only after the work has finished.

    LangGraph's async SQLite store would otherwise be left inside an open transaction.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
