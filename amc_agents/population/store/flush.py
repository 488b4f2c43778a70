"""A particle's knowledge of store items, and the flush of the winner's writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from amc_agents.runtime.store_operations import batch

Key = tuple[tuple[str, ...], str]
"""Namespace and key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A particle's knowledge of one key."""

    before: dict[str, Any] | None
    """Value in the store when the particle first read or wrote the key; None if the key was absent."""
    write: PutOp | None = None
    """The particle's last write to the key."""
    item: Item | None = None
    """Item after that write; None if the write deleted it."""


async def flush(store: BaseStore, written: Mapping[Key, Entry]) -> list[str]:
    """Write to a store, in order, with the index and time to live of each write.

    An item that others changed in the meantime is overwritten, as by an agent that runs alone.

    Args:
        store: the store.
        written: the entries that have a write, in order.

    Returns:
        Notes that name the items that were overwritten in this way.
    """
    if not written:
        return []
    items = await batch(store, *[GetOp(namespace, key, refresh_ttl=False) for namespace, key in written])
    changed = [
        f"{'.'.join(namespace)}/{key}"[:60]
        for ((namespace, key), entry), item in zip(written.items(), items, strict=True)
        if (None if item is None else item.value) != entry.before
    ]
    await batch(store, *[entry.write for entry in written.values() if entry.write is not None])
    if not changed:
        return []
    names = ", ".join(changed[:4]) + (f" and {len(changed) - 4} more" if len(changed) > 4 else "")
    return [f"others changed {names} in the store during the run, and the winner's writes have replaced it"]
