"""Results of a store and of writes that are not in it yet, as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

from langgraph.store.base import Item, ListNamespacesOp, PutOp, SearchItem, SearchOp

from amc_agents.population.containers import own_containers

ALL = 1_000_000
"""A search has to name a limit."""


def in_namespace(write: PutOp | None, prefix: tuple[str, ...]) -> bool:
    """Whether a write concerns a search under `prefix`."""
    return write is not None and write.namespace[: len(prefix)] == prefix


def own_item(item: Item) -> Item:
    """An item with containers of its own, as a database gives it."""
    return Item(value=own_containers(item.value), key=item.key, namespace=item.namespace,
                created_at=item.created_at, updated_at=item.updated_at)  # fmt: skip


def own_hit(item: Item, score: float | None) -> SearchItem:
    """An item that a search found, with containers of its own."""
    return SearchItem(value=own_containers(item.value), key=item.key, namespace=item.namespace,
                      created_at=item.created_at, updated_at=item.updated_at, score=score)  # fmt: skip


def merged(
    op: SearchOp,
    found: Sequence[SearchItem],
    own: Sequence[SearchItem],
    written: Set[tuple[tuple[str, ...], str]],
    *,
    ranked: bool,
    keeps_order: bool,
) -> list[SearchItem]:
    """The page that a search asks for.

    Args:
        op: the search.
        found: what the store gives from the first item on, enough of it.
        own: the items written since, in order, that the search finds.
        written: keys that were written or deleted since.
        ranked: both have scores.
        keeps_order: the store gives items in the order of writing, by namespace; otherwise the newest first.
    """
    left = [item for item in found if (item.namespace, item.key) not in written]
    if ranked:
        items = sorted([*left, *own], key=lambda item: (item.score is not None, item.score or 0.0), reverse=True)
    elif keeps_order:
        items = _in_order(found, own, written)
    elif any(item.score is not None for item in left):
        items = [*left, *own]
    else:
        items = [*sorted(own, key=lambda item: item.updated_at, reverse=True), *left]
    return items[op.offset : op.offset + op.limit]


def truncated(op: ListNamespacesOp, namespaces: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The page of namespaces that is asked for, cut at the depth that is asked for."""
    listed = sorted({namespace[: op.max_depth] for namespace in namespaces})
    return listed[op.offset : op.offset + op.limit]


def _in_order(
    found: Sequence[SearchItem], own: Sequence[SearchItem], written: Set[tuple[tuple[str, ...], str]]
) -> list[SearchItem]:
    """Items by namespace; what was overwritten keeps its place."""
    places: dict[tuple[str, ...], dict[str, SearchItem | None]] = {}
    for item in found:
        hidden = (item.namespace, item.key) in written
        places.setdefault(item.namespace, {})[item.key] = None if hidden else item
    for item in own:
        places.setdefault(item.namespace, {})[item.key] = item
    return [item for items in places.values() for item in items.values() if item is not None]
