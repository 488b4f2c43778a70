"""The vector index of a store, for items that are not in the store yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, ensure_embeddings
from typing_extensions import override


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
