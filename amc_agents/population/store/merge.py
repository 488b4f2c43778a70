"""Merges the results of a store with writes that are not in the store yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from langgraph.store.base import Item, ListNamespacesOp, PutOp, SearchItem, SearchOp

from amc_agents.population.containers import own_containers


def in_namespace(write: PutOp | None, prefix: tuple[str, ...]) -> bool:
    """Return whether a write lies under the namespace prefix of a search."""
    return write is not None and write.namespace[: len(prefix)] == prefix


def own_item(item: Item) -> Item:
    """Copy an item with its containers, as a database would return it."""
    return Item(value=own_containers(item.value), key=item.key, namespace=item.namespace,
                created_at=item.created_at, updated_at=item.updated_at)  # fmt: skip


def own_hit(item: Item, score: float | None) -> SearchItem:
    """Copy a search result with its containers."""
    return SearchItem(value=own_containers(item.value), key=item.key, namespace=item.namespace,
                      created_at=item.created_at, updated_at=item.updated_at, score=score)  # fmt: skip


def merged(
    op: SearchOp,
    stored: Sequence[SearchItem],
    own: Sequence[SearchItem],
    written: Set[tuple[tuple[str, ...], str]],
    *,
    ranked: bool,
    keeps_order: bool,
) -> list[SearchItem]:
    """Return the requested page of merged search results.

    Args:
        op: the search.
        stored: results of the store from the first item on, long enough for the page.
        own: matching items written since, in order.
        written: keys written or deleted since.
        ranked: whether both lists have scores.
        keeps_order: whether the store returns items in the order of writing by namespace, instead of newest first.
    """
    unchanged = [item for item in stored if (item.namespace, item.key) not in written]
    if ranked:
        items = sorted([*unchanged, *own], key=lambda item: (item.score is not None, item.score or 0.0), reverse=True)
    elif keeps_order:
        items = _in_order(stored, own, written)
    elif any(item.score is not None for item in unchanged):
        items = [*unchanged, *own]
    else:
        items = [*sorted(own, key=lambda item: item.updated_at, reverse=True), *unchanged]
    return items[op.offset : op.offset + op.limit]


def truncated(op: ListNamespacesOp, namespaces: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the requested page of namespaces, truncated to the requested depth."""
    listed = sorted({namespace[: op.max_depth] for namespace in namespaces})
    return listed[op.offset : op.offset + op.limit]


def _in_order(
    stored: Sequence[SearchItem], own: Sequence[SearchItem], written: Set[tuple[tuple[str, ...], str]]
) -> list[SearchItem]:
    """Return items by namespace. An overwritten item keeps its place."""
    places: dict[tuple[str, ...], dict[str, SearchItem | None]] = {}
    for item in stored:
        hidden = (item.namespace, item.key) in written
        places.setdefault(item.namespace, {})[item.key] = None if hidden else item
    for item in own:
        places.setdefault(item.namespace, {})[item.key] = item
    return [item for items in places.values() for item in items.values() if item is not None]
