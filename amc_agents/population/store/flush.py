"""What a particle knows of a store's items, and how the winner's writes reach the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from amc_agents.runtime.store_operations import batch, put_if_absent_in

Key = tuple[tuple[str, ...], str]
"""Namespace and key."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What a particle knows of one key."""

    before: dict[str, Any] | None
    """The value in the store when the particle first read or wrote the key; None: there was none."""
    write: PutOp | None = None
    """Its own last write."""
    item: Item | None = None
    """What that write left; None where it deleted the item."""
    unless_taken: bool = False
    """The store must have no such key when the write reaches it."""


async def flush(store: BaseStore, written: Mapping[Key, Entry]) -> list[str]:
    """Write to a store, in order, with each write's index and time to live.

    An item that others changed in the meantime is overwritten, as by an agent that runs alone. A write that must find
    its key free is left out where the key is taken, with those that follow it in its namespace.

    Args:
        store: the store.
        written: the entries with a write, in order.

    Returns:
        Notes that name such items.
    """
    if not written:
        return []
    found = await batch(store, *[GetOp(namespace, key, refresh_ttl=False) for namespace, key in written])
    changed = [
        key
        for (key, entry), item in zip(written.items(), found, strict=True)
        if not entry.unless_taken and (None if item is None else item.value) != entry.before
    ]
    plain = [entry.write for entry in written.values() if entry.write is not None and not entry.unless_taken]
    if plain:
        await batch(store, *plain)
    refused = await _put_unless_taken(
        store, [entry.write for entry in written.values() if entry.write is not None and entry.unless_taken]
    )
    return [
        *_noted("others changed {} in the store during the run, and the winner's writes have replaced it", changed),
        *_noted("others wrote {} in the store during the run, and the winner's version of it is left out", refused),
    ]


async def _put_unless_taken(store: BaseStore, writes: Sequence[PutOp]) -> list[Key]:
    put = put_if_absent_in(store)
    refused: dict[tuple[str, ...], Key] = {}
    for write in writes:
        if put is None or write.value is None or write.namespace in refused:
            continue
        if not await put(write.namespace, write.key, dict(write.value)):
            refused[write.namespace] = (write.namespace, write.key)
    return list(refused.values())


def _noted(text: str, keys: Sequence[Key]) -> list[str]:
    if not keys:
        return []
    names = [f"{'.'.join(namespace)}/{key}"[:60] for namespace, key in keys[:4]]
    more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
    return [text.format(", ".join(names) + more)]
