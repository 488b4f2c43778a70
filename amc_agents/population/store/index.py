"""The vector index of a store, for items that are not in it yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from langchain_core.embeddings import Embeddings
from langgraph.store.base import BaseStore, IndexConfig, ensure_embeddings


class RememberedEmbeddings(Embeddings):
    """Embeds each text once: particles share a past, and search the same writes again and again."""

    def __init__(self, inner: Embeddings) -> None:
        self._inner = inner
        self._documents: dict[str, list[float]] = {}
        self._queries: dict[str, list[float]] = {}

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """See `Embeddings`."""
        new = self._new(texts)
        return self._remembered(texts, new, self._inner.embed_documents(new) if new else [])

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        """See `Embeddings`."""
        new = self._new(texts)
        return self._remembered(texts, new, await self._inner.aembed_documents(new) if new else [])

    def embed_query(self, text: str) -> list[float]:
        """See `Embeddings`."""
        if text not in self._queries:
            self._queries[text] = self._inner.embed_query(text)
        return self._queries[text]

    async def aembed_query(self, text: str) -> list[float]:
        """See `Embeddings`."""
        if text not in self._queries:
            self._queries[text] = await self._inner.aembed_query(text)
        return self._queries[text]

    def _new(self, texts: list[str]) -> list[str]:
        return [text for text in dict.fromkeys(texts) if text not in self._documents]

    def _remembered(self, texts: list[str], new: list[str], vectors: Sequence[list[float]]) -> list[list[float]]:
        self._documents.update(zip(new, vectors, strict=True))
        return [self._documents[text] for text in texts]


def index_like(base: BaseStore) -> IndexConfig | None:
    """An index that embeds as `base` does, each text once; None where `base` has no index that can be read."""
    config = cast("dict[str, Any] | None", getattr(base, "index_config", None))
    if not config:
        return None
    embeddings = getattr(base, "embeddings", None) or ensure_embeddings(config["embed"])
    # SQLite's store reads its fields under another name; all of LangGraph's keep the paths that they read.
    read = config.get("__tokenized_fields")
    fields = [path for path, _ in read] if read else config.get("fields") or ["$"]
    return {"dims": config["dims"], "embed": RememberedEmbeddings(embeddings), "fields": fields}
