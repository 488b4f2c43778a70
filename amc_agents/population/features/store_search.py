"""Searches of a store by filter and query, for items that are not in the store yet."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    IndexConfig,
    Item,
    ListNamespacesOp,
    PutOp,
    SearchItem,
    SearchOp,
    ensure_embeddings,
)
from typing_extensions import override

from amc_agents.population.saver import own_containers
from amc_agents.quoting import quoted

_ORDER = {"$gt": operator.gt, "$gte": operator.ge, "$lt": operator.lt, "$lte": operator.le}


def matches(value: Any, wanted: Any) -> bool:
    """Return whether a value matches a filter, as in LangGraph's stores. Values that cannot be compared do not match.

    Raises:
        ValueError: the filter has an unknown operator.
    """
    if isinstance(wanted, Mapping):
        if any(key.startswith("$") for key in wanted):
            return all(_compares(value, name, limit) for name, limit in wanted.items())
        return isinstance(value, Mapping) and all(matches(value.get(key), inner) for key, inner in wanted.items())
    if isinstance(wanted, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(wanted) and all(map(matches, value, wanted))
    return bool(value == wanted)


def _compares(value: Any, name: str, limit: Any) -> bool:
    if name in ("$eq", "$ne"):
        return bool(value == limit) is (name == "$eq")
    if name not in _ORDER:
        raise ValueError(f"expected a filter operator among $eq, $ne, {', '.join(_ORDER)}, got {quoted(name)}")
    if isinstance(value, str) and isinstance(limit, str):
        return bool(_ORDER[name](value, limit))
    try:
        return bool(_ORDER[name](float(value), float(limit)))
    except (TypeError, ValueError):
        return False


class CachedEmbeddings(Embeddings):
    """Caches embeddings. Particles share a past and search the same writes repeatedly."""

    def __init__(self, inner: Embeddings) -> None:
        self._inner = inner
        self._documents: dict[str, list[float]] = {}
        self._queries: dict[str, list[float]] = {}

    @override
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        new = self._uncached(texts)
        return self._cached(texts, new, self._inner.embed_documents(new) if new else [])

    @override
    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        new = self._uncached(texts)
        return self._cached(texts, new, await self._inner.aembed_documents(new) if new else [])

    @override
    def embed_query(self, text: str) -> list[float]:
        if text not in self._queries:
            self._queries[text] = self._inner.embed_query(text)
        return self._queries[text]

    @override
    async def aembed_query(self, text: str) -> list[float]:
        if text not in self._queries:
            self._queries[text] = await self._inner.aembed_query(text)
        return self._queries[text]

    def _uncached(self, texts: list[str]) -> list[str]:
        return [text for text in dict.fromkeys(texts) if text not in self._documents]

    def _cached(self, texts: list[str], new: list[str], vectors: Sequence[list[float]]) -> list[list[float]]:
        self._documents.update(zip(new, vectors, strict=True))
        return [self._documents[text] for text in texts]


def index_like(base: BaseStore) -> IndexConfig | None:
    """Return an index with the embeddings of `base`, cached; None if `base` has no readable index."""
    config = cast("dict[str, Any] | None", getattr(base, "index_config", None))
    if not config:
        return None
    embeddings = getattr(base, "embeddings", None) or ensure_embeddings(config["embed"])
    # LangGraph's stores keep the parsed field paths; the SQLite store names its fields differently.
    tokenized = config.get("__tokenized_fields")
    fields = [path for path, _ in tokenized] if tokenized else config.get("fields") or ["$"]
    return {"dims": config["dims"], "embed": CachedEmbeddings(embeddings), "fields": fields}


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
