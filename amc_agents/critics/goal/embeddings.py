"""Texts -> vectors, for the goal critic: from a server, a provider, a model in this process, or by hashing words.

hashed:1024                              words and pairs of words, hashed; needs no model
vllm:http://host:8002?model=org/name     any server with /v1/embeddings
sentence-transformers:org/name           in this process
openai:text-embedding-3-small            any provider of LangChain's init_embeddings
"""

from __future__ import annotations

import asyncio
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings

from amc_agents.concurrency.blocking import BlockingCalls
from amc_agents.critics.asking import key_of
from amc_agents.critics.disk_cache import DiskCache
from amc_agents.critics.options import allow, needed, number, positive_integer, server_options
from amc_agents.critics.server.answers import rows_of, usage_of
from amc_agents.critics.server.http import ModelServer
from amc_agents.errors import ConfigurationError, CriticError, CriticSpecError, MissingExtra
from amc_agents.quoting import cause_of, excerpt, keep_secrets_of, quoted
from amc_agents.usage import Usage

Vectors = npt.NDArray[np.float32]


class Embedded(NamedTuple):
    """What some texts became."""

    vectors: Vectors
    """`[n, D]` one row per text."""
    usage: Usage
    """What that cost."""


class TextEmbeddings(Protocol):
    """Embeds texts. The same text always gives the same vector, up to rounding."""

    @property
    def spec(self) -> str:
        """Names the model: a checkpoint and a cache carry it. Holds no key."""
        ...

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """One vector per text. Raises `CriticError` where the model fails or answers nonsense."""
        ...


def as_embeddings(
    embeddings: str | TextEmbeddings | Embeddings, *, key_env: str | None = None, **options: str
) -> TextEmbeddings:
    """Embeddings from their string (see the top of this file), or around a LangChain `Embeddings`.

    Args:
        embeddings: a string, an `Embeddings` of LangChain, or an object with `spec` and `embed`, given back as it is.
        key_env: environment variable that holds the key.
        **options: timeout and retry_for of a server, in seconds; a provider knows the first alone.

    Raises:
        CriticSpecError: the string was not understood.
        MissingExtra: it needs a package that is not installed.
    """
    if isinstance(embeddings, Embeddings):
        return LangChainEmbeddings(embeddings)
    if not isinstance(embeddings, str):
        return embeddings
    kind, _, target = embeddings.partition(":")
    if kind == "hashed":
        dimensions = positive_integer("hashed", {"dimensions": target} if target else {}, "dimensions", 1024)
        return HashedWords(dimensions)
    if kind == "vllm":
        return _server(target, key_env, options)
    if kind == "sentence-transformers":
        return SentenceTransformers(needed(kind, target, "org/name"))
    if kind == "object":
        raise CriticSpecError(f"{embeddings!r} stands for an object that was passed in Python: pass it again")
    timeout = number("embeddings", options, "timeout", 600.0, least=0.001)
    return LangChainEmbeddings(_from_provider(embeddings, key_env), spec=embeddings, timeout=timeout)


class HashedWords:
    """Bags of words and of neighbouring words, hashed into a few dimensions; unit length.

    It knows no meaning: two texts are near where they share words. A baseline, and enough for terse worlds.

    Args:
        dimensions: D.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        if dimensions < 1:
            raise ConfigurationError(f"dimensions must be at least 1, got {dimensions}")
        self.dimensions = dimensions

    @property
    def spec(self) -> str:
        """As `as_embeddings` reads it."""
        return f"hashed:{self.dimensions}"

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """One vector per text, the same on every machine; a text without words gives zeros."""
        return Embedded(await asyncio.to_thread(self._embed, texts), Usage())

    def _embed(self, texts: Sequence[str]) -> Vectors:
        found = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(found, texts, strict=True):
            words = _WORD.findall(text.lower())
            pairs = (f"{one} {other}" for one, other in pairwise(words))
            for term, count in Counter((*words, *pairs)).items():
                code = zlib.crc32(term.encode())
                # A sign for each term: two that share a place do not always add up.
                row[code % self.dimensions] += math.sqrt(count) if code >> 31 else -math.sqrt(count)
        lengths = np.linalg.norm(found, axis=1, keepdims=True)
        found /= np.where(lengths > 0, lengths, 1.0)
        return found


class ServerEmbeddings:
    """A server with /v1/embeddings, such as vLLM.

    Args:
        server: where it is.
        model: its name there.
        batch_size: texts of one request.
    """

    def __init__(self, server: ModelServer, model: str, *, batch_size: int = 64) -> None:
        self._server, self._model, self._batch_size = server, model, batch_size

    @property
    def spec(self) -> str:
        """As `as_embeddings` reads it."""
        return f"vllm:{self._server.base_url}?model={self._model}"

    @property
    def interruptions(self) -> int:
        """How often the server was lost after it had answered."""
        return self._server.interruptions

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """One vector per text, in requests side by side. Raises `CriticServerError` and `CriticError`."""
        batches = [list(texts[start : start + self._batch_size]) for start in range(0, len(texts), self._batch_size)]
        bodies = [{"model": self._model, "input": batch, "encoding_format": "float"} for batch in batches]
        answers = await self._server.post("/v1/embeddings", bodies)
        vectors = [_rows(answer, len(batch), self.spec) for answer, batch in zip(answers, batches, strict=True)]
        return Embedded(_stacked(vectors, self.spec), sum(map(usage_of, answers), Usage()))


class LangChainEmbeddings:
    """Any `Embeddings` of LangChain.

    Args:
        embeddings: the object.
        spec: names the model; None: made of its class and its attribute `model`.
        timeout: seconds that all of a call may take; a model that computes in this process may need many.
    """

    def __init__(self, embeddings: Embeddings, *, spec: str | None = None, timeout: float = 600.0) -> None:
        self._embeddings, self._timeout = embeddings, timeout
        self._calls = BlockingCalls("amc-embeddings", 8, timeout)
        keep_secrets_of(embeddings)
        model = getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None) or ""
        self.spec = spec or f"object:{type(embeddings).__name__}:{model}"

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """One vector per text. LangChain does not say how many requests or tokens that took. Raises `CriticError`."""
        if not texts:
            return Embedded(np.zeros((0, 0), dtype=np.float32), Usage())
        # By the sync method: see `critics.asking`.
        try:
            answer = await self._calls.run(partial(self._embeddings.embed_documents, list(texts)))
        except TimeoutError as error:
            raise CriticError(
                f"embeddings {self.spec} gave no complete answer within {self._timeout:g} s: is the server overloaded "
                "or stuck? Set a larger timeout="
            ) from error
        except Exception as error:  # each provider's package has errors of its own
            raise CriticError(
                f"embeddings {self.spec} failed: {type(error).__name__}: {excerpt(str(error))}"
            ) from cause_of(error)
        return Embedded(_checked(answer, len(texts), self.spec), Usage(calls=1, missing=1))


class SentenceTransformers:
    """A sentence-transformers model in this process; loaded at the first use.

    Args:
        name: of the model, or its folder.
    """

    def __init__(self, name: str) -> None:
        self.spec = f"sentence-transformers:{name}"
        self._model = _sentence_transformer(name)

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """One vector per text; a text longer than the model reads is cut by it."""
        answer = await asyncio.to_thread(self._model.encode, list(texts), show_progress_bar=False)
        return Embedded(_checked(answer, len(texts), self.spec), Usage(calls=len(texts), missing=len(texts)))


class CachedEmbeddings:
    """Embeddings that ask for each text once and keep the answers in a file.

    Args:
        embeddings: who is asked.
        path: the file; it may hold the answers of several models.
        chunk: texts asked for between two writes: what an interruption can lose.
        progress: called with the number of texts embedded so far and of all.
    """

    def __init__(
        self,
        embeddings: TextEmbeddings,
        path: str | Path,
        *,
        chunk: int = 512,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self._embeddings, self._chunk, self._progress = embeddings, chunk, progress
        self._cache = DiskCache(path, f"embedding {embeddings.spec}")

    @property
    def spec(self) -> str:
        """Of the embeddings that are asked."""
        return self._embeddings.spec

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """One vector per text; the usage is of the texts that were not in the file."""
        known = await asyncio.to_thread(self._cache.get, texts)
        new = [text for text in dict.fromkeys(texts) if text not in known]
        usage = Usage()
        for start in range(0, len(new), self._chunk):
            chosen = new[start : start + self._chunk]
            vectors, used = await self._embeddings.embed(chosen)
            answers = {text: row.astype("<f4").tobytes() for text, row in zip(chosen, vectors, strict=True)}
            await asyncio.to_thread(self._cache.put, answers)
            known |= answers
            usage += used
            if self._progress is not None:
                self._progress(min(start + self._chunk, len(new)), len(new))
        rows = [np.frombuffer(known[text], dtype="<f4") for text in texts]
        return Embedded(_checked(rows, len(texts), self.spec), usage)


def _server(target: str, key_env: str | None, options: dict[str, str]) -> ServerEmbeddings:
    url, _, query = needed("vllm", target, "http://host:8002?model=org/name").partition("?")
    own = dict(parse_qsl(query, keep_blank_values=True))
    allow("vllm", own, "model")
    if not own.get("model"):
        raise CriticSpecError(f"embeddings vllm:{target} name no model: expected vllm:http://host:8002?model=org/name")
    allow("vllm", options, "timeout", "retry_for")
    asked = {**options, "key_env": key_env} if key_env else options
    return ServerEmbeddings(ModelServer(url, **server_options("vllm", asked)), own["model"])


def _from_provider(spec: str, key_env: str | None) -> Embeddings:
    from langchain.embeddings import init_embeddings

    key = {} if key_env is None else {"api_key": key_of(f"embeddings {spec!r}", key_env)}
    try:
        found: Any = init_embeddings(spec, **key)
    except (ImportError, ValueError) as error:
        raise CriticSpecError(
            f"embeddings {spec!r} were not understood: {excerpt(str(error).splitlines()[0])} Expected hashed:1024, "
            "vllm:http://host:8002?model=name, sentence-transformers:name, or provider:model of LangChain"
        ) from cause_of(error)
    return found  # type: ignore[no-any-return]


def _sentence_transformer(name: str) -> Any:
    try:
        package = import_module("sentence_transformers")
    except ImportError as error:
        raise MissingPackage("sentence-transformers") from error
    return package.SentenceTransformer(name)


class MissingPackage(MissingExtra):
    """A package that none of our extras brings is not installed."""

    def __init__(self, package: str) -> None:
        self.package, self.extra = package, ""
        ImportError.__init__(self, f"{package!r} is needed here and is not installed: pip install {package}")


def _rows(answer: Any, n: int, spec: str) -> Vectors:
    try:
        rows = rows_of(answer, "data", n)
    except ValueError as error:
        raise CriticError(f"embeddings {spec}: {error}") from error
    for row in rows:
        vector = row.get("embedding")
        if not isinstance(vector, list) or not all(type(number) in (int, float) for number in vector):
            raise CriticError(f"embeddings {spec}: expected a list of numbers as `embedding`, got {quoted(row)}")
    return _checked([row["embedding"] for row in rows], n, spec)


def _stacked(parts: Sequence[Vectors], spec: str) -> Vectors:
    if len({part.shape[1] for part in parts}) > 1:
        raise CriticError(f"embeddings {spec} answered vectors of lengths {sorted({part.shape[1] for part in parts})}")
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def _checked(answer: Any, n: int, spec: str) -> Vectors:
    """`[n, D]`, finite, or `CriticError`."""
    try:
        with np.errstate(over="ignore"):  # what is too large is infinite, and refused below
            found: Vectors = np.asarray(answer, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise CriticError(f"embeddings {spec} did not answer [{n}, D] numbers: {excerpt(str(error))}") from error
    if n == 0:
        return found.reshape(0, 0)
    if found.ndim != 2 or len(found) != n or found.shape[1] == 0:
        raise CriticError(f"embeddings {spec} answered the shape {list(found.shape)}, expected [{n}, D]")
    if not np.all(np.isfinite(found)):
        raise CriticError(f"embeddings {spec} answered numbers that are not finite for {n} texts")
    return found


_WORD = re.compile(r"\w+")
