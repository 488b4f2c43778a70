"""Text embeddings for the goal critic: from a server, a provider, a local model, or by hashing words.

hashed:1024                              hashed words and pairs of words, without a model
vllm:http://host:8002?model=org/name     any server with /v1/embeddings
sentence-transformers:org/name           a model in this process
openai:text-embedding-3-small            any provider of LangChain's init_embeddings
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import re
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import Embeddings

from amc_agents.budget import Bound, claim
from amc_agents.concurrency.gather import BlockingCalls
from amc_agents.critics.asking import key_of
from amc_agents.critics.server.client import ModelServer, server_options, usage_of
from amc_agents.critics.server.served import rows_of
from amc_agents.critics.spec import allow, needed, number, positive_integer
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, CriticSpecError, MissingExtra
from amc_agents.quoting import cause_of, excerpt, keep_secrets_of, quoted
from amc_agents.usage import Usage

Vectors = npt.NDArray[np.float32]


class Embedded(NamedTuple):
    """Embeddings of some texts."""

    vectors: Vectors
    """`[n, D]`, one row per text."""
    usage: Usage
    """Usage of the calls."""


class TextEmbeddings(Protocol):
    """Embeds texts. The same text always gives the same vector, up to rounding."""

    @property
    def spec(self) -> str:
        """Name of the model in checkpoints and caches; contains no API key."""
        ...

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed each text. Raises `CriticError` if the model fails or its answer is invalid."""
        ...


def as_embeddings(
    embeddings: str | TextEmbeddings | Embeddings, *, key_env: str | None = None, **options: str
) -> TextEmbeddings:
    """Build embeddings from a string (see the module docstring), or wrap a LangChain `Embeddings`.

    Args:
        embeddings: a string, a LangChain `Embeddings`, or a `TextEmbeddings`, which is returned unchanged.
        key_env: environment variable with the API key.
        **options: timeout and retry_for of a server, in seconds; a provider only accepts timeout.

    Raises:
        CriticSpecError: the string is invalid.
        MissingExtra: a required package is not installed.
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
        raise CriticSpecError(f"{quoted(embeddings)} names an object that was passed in Python: pass it again")
    timeout = number("embeddings", options, "timeout", 600.0, least=0.001)
    return LangChainEmbeddings(_from_provider(embeddings, key_env), spec=embeddings, timeout=timeout)


class HashedWords:
    """Bags of words and of pairs of adjacent words, hashed into D dimensions and normalised.

    Texts are similar if they share words; meaning plays no part. A baseline, and enough for worlds with few words.

    Args:
        dimensions: D.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        if dimensions < 1:
            raise ConfigurationError(f"dimensions must be at least 1, got {dimensions}")
        self.dimensions = dimensions

    @property
    def spec(self) -> str:
        """String of these embeddings."""
        return f"hashed:{self.dimensions}"

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed each text, equally on every machine; a text without words gives a zero vector."""
        return Embedded(await asyncio.to_thread(self._embed, texts), Usage())

    def _embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            words = _WORD.findall(text.lower())
            pairs = (f"{left} {right}" for left, right in pairwise(words))
            for term, count in Counter((*words, *pairs)).items():
                code = zlib.crc32(term.encode())
                # Signs make collisions of terms cancel out on average.
                row[code % self.dimensions] += math.sqrt(count) if code >> 31 else -math.sqrt(count)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors /= np.where(lengths > 0, lengths, 1.0)
        return vectors


class ServerEmbeddings:
    """A server with /v1/embeddings, such as vLLM.

    Args:
        server: the server.
        model: name of the model on the server.
        batch_size: number of texts per request.
    """

    def __init__(self, server: ModelServer, model: str, *, batch_size: int = 64) -> None:
        self._server, self._model, self._batch_size = server, model, batch_size

    @property
    def spec(self) -> str:
        """String of these embeddings."""
        return f"vllm:{self._server.base_url}?model={self._model}"

    @property
    def charged_as(self) -> str:
        """Name of the model under which a budget is charged."""
        return self._model

    @property
    def interruptions(self) -> int:
        """Number of times the connection was lost after the first answer."""
        return self._server.interruptions

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed each text, in concurrent requests. Raises `CriticServerError` and `CriticError`."""
        batches = [list(texts[start : start + self._batch_size]) for start in range(0, len(texts), self._batch_size)]
        bodies = [{"model": self._model, "input": batch, "encoding_format": "float"} for batch in batches]
        bounds = [Bound(self._model, _bytes(batch), 0) for batch in batches]
        answers = await self._server.post("/v1/embeddings", bodies, bounds)
        vectors = [_rows(answer, len(batch), self.spec) for answer, batch in zip(answers, batches, strict=True)]
        return Embedded(_stacked(vectors, self.spec), sum(map(usage_of, answers), Usage()))


class LangChainEmbeddings:
    """A LangChain `Embeddings` object.

    Args:
        embeddings: the object.
        spec: name of the model; None: its class and its attribute `model`.
        timeout: time limit of a call in seconds, including retries; local models may be slow.
    """

    def __init__(self, embeddings: Embeddings, *, spec: str | None = None, timeout: float = 600.0) -> None:
        self._embeddings, self._timeout = embeddings, timeout
        self._calls = BlockingCalls("amc-embeddings", 8, timeout)
        keep_secrets_of(embeddings)
        model = getattr(embeddings, "model", None) or getattr(embeddings, "model_name", None) or ""
        self.spec = spec or f"object:{type(embeddings).__name__}:{model}"

    @property
    def charged_as(self) -> str:
        """Name of the model under which a budget is charged."""
        return self.spec

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed each text. LangChain does not report requests and tokens, so usage is missing. Raises `CriticError`."""
        if not texts:
            return Embedded(np.zeros((0, 0), dtype=np.float32), Usage())
        async with claim([Bound(self.spec, _bytes(texts), 0)]) as claimed:
            answer = await self._embed(texts)
            claimed.settle(None)
        return Embedded(_checked(answer, len(texts), self.spec), Usage(calls=1, missing=1))

    async def _embed(self, texts: Sequence[str]) -> Any:
        # By the synchronous method; see `critics.asking` for the reason.
        try:
            return await self._calls.run(partial(self._embeddings.embed_documents, list(texts)))
        except TimeoutError as error:
            raise CriticError(
                f"embeddings {self.spec} gave no complete answer within {self._timeout:g} s: is the server overloaded "
                "or stuck? Set a larger timeout="
            ) from error
        except Exception as error:  # each provider's package has its own errors
            raise CriticError(
                f"embeddings {self.spec} failed: {type(error).__name__}: {excerpt(str(error))}"
            ) from cause_of(error)


class SentenceTransformers:
    """A sentence-transformers model in this process.

    Args:
        name: name of the model, or its folder.

    Raises:
        MissingExtra: sentence-transformers is not installed.
    """

    def __init__(self, name: str) -> None:
        self.spec = f"sentence-transformers:{name}"
        self._model = _sentence_transformer(name)

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed each text; the model truncates texts that are too long."""
        answer = await asyncio.to_thread(self._model.encode, list(texts), show_progress_bar=False)
        return Embedded(_checked(answer, len(texts), self.spec), Usage(calls=len(texts), missing=len(texts)))


class CachedEmbeddings:
    """Embeddings with a cache file, so that each text is embedded once.

    Args:
        embeddings: computes texts that are not cached.
        path: the cache file; several models can share it.
        chunk: number of texts between two writes, which an interruption can lose.
        progress: called with the number of texts embedded so far and the total.
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
        """Name of the underlying model."""
        return self._embeddings.spec

    async def embed(self, texts: Sequence[str]) -> Embedded:
        """Embed each text; usage counts only texts that were not cached."""
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
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    allow("vllm", parameters, "model")
    if not parameters.get("model"):
        raise CriticSpecError(f"embeddings vllm:{target} name no model: expected vllm:http://host:8002?model=org/name")
    allow("vllm", options, "timeout", "retry_for")
    settings = {**options, "key_env": key_env} if key_env else options
    return ServerEmbeddings(ModelServer(url, **server_options("vllm", settings)), parameters["model"])


def _from_provider(spec: str, key_env: str | None) -> Embeddings:
    from langchain.embeddings import init_embeddings

    key: dict[str, Any] = {} if key_env is None else {"api_key": key_of(f"embeddings {quoted(spec)}", key_env)}
    try:
        embeddings: Any = init_embeddings(spec, **key)
    except (ImportError, ValueError) as error:
        raise CriticSpecError(
            f"invalid embeddings {quoted(spec)}: {excerpt(str(error).splitlines()[0])} Expected hashed:1024, "
            "vllm:http://host:8002?model=name, sentence-transformers:name, or LangChain's provider:model"
        ) from cause_of(error)
    return embeddings  # type: ignore[no-any-return]


def _sentence_transformer(name: str) -> Any:
    try:
        package = import_module("sentence_transformers")
    except ImportError as error:
        raise MissingPackage("sentence-transformers") from error
    return package.SentenceTransformer(name)


class MissingPackage(MissingExtra):
    """A package that no extra of this library contains is not installed."""

    def __init__(self, package: str) -> None:
        self.package, self.extra = package, ""
        ImportError.__init__(self, f"{quoted(package)} is required and not installed: pip install {package}")


def _bytes(texts: Sequence[str]) -> int:
    """Return an upper bound of the tokens of texts, each with a few special tokens."""
    return sum(len(text.encode(errors="replace")) + 4 for text in texts)


def _rows(answer: Any, n: int, spec: str) -> Vectors:
    try:
        rows = rows_of(answer, "data", n)
    except ValueError as error:
        raise CriticError(f"embeddings {spec}: {error}. Is it a server with /v1/embeddings?") from error
    for row in rows:
        vector = row.get("embedding")
        if not isinstance(vector, list) or not all(type(number) in (int, float) for number in vector):
            raise CriticError(f"embeddings {spec}: expected a list of numbers as `embedding`, got {quoted(row, 200)}")
    return _checked([row["embedding"] for row in rows], n, spec)


def _stacked(parts: Sequence[Vectors], spec: str) -> Vectors:
    if len({part.shape[1] for part in parts}) > 1:
        lengths = sorted({part.shape[1] for part in parts})
        raise CriticError(f"embeddings {spec}: expected vectors of equal length, got lengths {lengths}")
    return np.concatenate(parts) if parts else np.zeros((0, 0), dtype=np.float32)


def _checked(answer: Any, n: int, spec: str) -> Vectors:
    """Return an answer as finite vectors `[n, D]`. Raises `CriticError`."""
    try:
        with np.errstate(over="ignore"):  # numbers that overflow become infinite and are refused below
            vectors: Vectors = np.asarray(answer, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise CriticError(f"embeddings {spec}: expected [{n}, D] numbers: {excerpt(str(error))}") from error
    if n == 0:
        return vectors.reshape(0, 0)
    if vectors.ndim != 2 or len(vectors) != n or vectors.shape[1] == 0:
        raise CriticError(f"embeddings {spec}: expected the shape [{n}, D], got {list(vectors.shape)}")
    if not np.all(np.isfinite(vectors)):
        raise CriticError(f"embeddings {spec}: expected finite numbers for {n} texts: check the model")
    return vectors


_WORD = re.compile(r"\w+")


class DiskCache:
    """Maps questions to answers, as bytes.

    Args:
        path: the file; created if it does not exist.
        namespace: what the answers depend on (a model's name, a prompt): it is part of every key.
    """

    def __init__(self, path: str | Path, namespace: str) -> None:
        self.path, self._namespace = Path(path), namespace

    def get(self, questions: Sequence[str]) -> dict[str, bytes]:
        """Return the cached answers, by question."""
        by_key = {self._key(question): question for question in questions}
        keys = list(by_key)
        answers: dict[str, bytes] = {}
        with self._open() as connection:
            for start in range(0, len(keys), _AT_ONCE):
                chosen = keys[start : start + _AT_ONCE]
                marks = ",".join("?" * len(chosen))
                rows = connection.execute(f"SELECT key, answer FROM answers WHERE key IN ({marks})", chosen)
                answers |= {by_key[key]: answer for key, answer in rows}
        return answers

    def put(self, answers: Mapping[str, bytes]) -> None:
        """Store the answers, atomically."""
        rows = [(self._key(question), answer) for question, answer in answers.items()]
        with self._open() as connection:
            connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?)", rows)

    def _key(self, question: str) -> bytes:
        return hashlib.sha256(f"{self._namespace}\0{question}".encode()).digest()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # A new connection for each call, since calls may come from any thread.
            with closing(sqlite3.connect(self.path, timeout=60.0)) as connection, connection:
                connection.execute("CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer BLOB NOT NULL)")
                yield connection
        except (OSError, sqlite3.Error) as error:
            raise CheckpointError(f"{self.path} cannot be used as a cache ({error}): choose another file") from error


_AT_ONCE = 500
"""Number of keys per query."""
