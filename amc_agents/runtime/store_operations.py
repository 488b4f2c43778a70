"""Operations on LangGraph stores, from async code and safe to cancel."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.store.base import BaseStore, Item, Op, SearchOp

from amc_agents.concurrency.gather import to_its_end

ALL = 1_000_000
"""Limit of a search for every item; `SearchOp` requires a limit."""


async def batch(store: BaseStore, *ops: Op) -> list[Any]:
    """Run operations on a store; a store without async methods runs them in a thread.

    Returns:
        One result per operation.
    """
    try:
        # A cancellation would leave LangGraph's async SQLite store inside an open transaction.
        return list(await to_its_end(store.abatch(ops)))
    except NotImplementedError:
        return list(await asyncio.to_thread(store.batch, ops))


async def items_of(store: BaseStore, namespace: tuple[str, ...]) -> list[Item]:
    """Read all items of a namespace, excluding nested namespaces."""
    while True:
        try:
            [items] = await batch(store, SearchOp(namespace, limit=ALL, refresh_ttl=False))
            break
        except RuntimeError as error:
            # LangGraph's InMemoryStore iterates over a dict to which another thread may write at that moment.
            if "changed size during iteration" not in str(error):
                raise
    return [item for item in items if item.namespace == namespace]
