"""The probabilities of two words as the next text, from a model's logits on a vLLM server.

The probability of a word is the sum over its spellings in tokens, with and without a space before it. The probability
of a spelling is the product over its tokens, each read after the prompt extended by the tokens before it; the extended
prompts go into the same request. (The alternative, whole spellings with `prompt_logprobs`, does not use the prefix
cache: vLLM 0.32 recomputed every prompt. Of 4 prompts with 300 new tokens in common, sent in one request with
`logprob_token_ids`, 864 of 1204 tokens came from the cache, in blocks of 32.)
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from amc_agents.budget import Bound
from amc_agents.concurrency.gather import Once
from amc_agents.critics.render import newest_start
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.server.served import (
    LEAST_LOGPROB,
    OVERWRITTEN,
    ServedModel,
    chosen_model,
    local_folder,
    rows_of,
    served_folder,
    tokenizer_of,
)
from amc_agents.critics.verdict.checkpoint import FILE, SERVED, VerdictCheckpoint, VerdictPrompt, Words, beginning_of
from amc_agents.errors import ConfigurationError, CriticServerError
from amc_agents.models.tokenizers import Tokenize
from amc_agents.quoting import listed, quoted
from amc_agents.types import FloatArray
from amc_agents.usage import Usage, record

PATH = "/v1/completions"
_MODELS = "/v1/models"
MOST_TOKENS = 128
"""Maximum number of tokens whose log-probabilities vLLM returns per position."""
ROUNDING = 1e-3
"""Rounding error of a probability."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """A model's verdicts on some prompts."""

    log_good: FloatArray
    """`[N]` log-probability that the word for success comes next."""
    log_bad: FloatArray
    """`[N]` log-probability that the word for failure comes next."""
    flagged: npt.NDArray[np.bool_]
    """`[N]` True if a word's probability is only bounded (|log-odds| is then a lower bound), or if both words have too
    little probability."""

    @property
    def mass(self) -> FloatArray:
        """`[N]` p(GOOD) + p(BAD), the probability of both words together."""
        return np.exp(np.logaddexp(self.log_good, self.log_bad))

    @property
    def log_odds(self) -> FloatArray:
        """`[N]` log p(GOOD) - log p(BAD)."""
        return self.log_good - self.log_bad


class VerdictReader(Protocol):
    """Reads the verdicts of a model."""

    name: str

    @property
    def usage(self) -> Usage:
        """Usage of all calls so far."""
        ...

    async def prepare(self) -> VerdictCheckpoint | None:
        """Attach to the model if needed; called before each use. Returns None for a model without checkpoint."""
        ...

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """Read `[N]` verdicts on N distinct prompts. Raises `CriticError`."""
        ...


class _Segment(NamedTuple):
    """A tokenized text of a request."""

    length: int
    ids: bytes
    """Token ids, joined by commas."""


class _Attached(NamedTuple):
    """A served model, its tokenizer and its checkpoint."""

    served: ServedModel
    tokenize: Tokenize
    segment: Callable[[str], _Segment]
    """Tokenizes a text, with a cache, since siblings share their past."""
    prefix_ids: tuple[int, ...]
    """Token ids before the first text."""
    checkpoint: VerdictCheckpoint | None
    interruptions: int
    """Interruptions of the server's connection when the model was checked."""

    def same_as(self, other: _Attached) -> bool:
        """Return whether prompts and answers are the same as for another model."""
        return (self.served, self.prefix_ids, self.checkpoint) == (other.served, other.prefix_ids, other.checkpoint)


class CompletionsReader:
    """Read the probabilities of chosen tokens from vLLM's `/v1/completions` (`logprob_token_ids`).

    Prompts are tokenized on the client, text by text, and sent as token ids, all prompts of a call in one request. At
    the first use, and after an interruption of the server, a model with a checkpoint must reproduce its golden
    log-odds.

    Args:
        server: the server.
        model: name of the model; None: the only model of the server.
        checkpoint: the model's folder (tokenizer.json, and amc_verdict.json if it was trained for verdicts); None: the
            folder that `server.folder.served_folder` finds.
        tokenize: replaces the folder's tokenizer; no folder is then needed.
        max_batch: maximum number of rows per request; a prompt takes a row per prefix of the words' spellings.
        tolerance: allowed difference of golden log-odds; None: the checkpoint's tolerance.

    Raises:
        CheckpointError: `checkpoint` is not a model's folder.
    """

    def __init__(
        self,
        server: ModelServer,
        *,
        model: str | None = None,
        checkpoint: str | Path | None = None,
        tokenize: Tokenize | None = None,
        max_batch: int = 512,
        tolerance: float | None = None,
    ) -> None:
        self.name = f"verdict:{server.base_url}" + (f"?model={model}" if model else "")
        self.usage = Usage()
        # An invalid folder is an error now, not at the first use.
        self._folder = local_folder(checkpoint, model, SERVED, trusted=server.trusted)
        self._server, self._model, self._tokenize = server, model, tokenize
        self._max_batch, self._tolerance = max_batch, tolerance
        self._attached = Once(self._attach)

    @property
    def charged_as(self) -> str | None:
        """Name of the model under which a budget is charged; None: the server was not asked for it yet."""
        attached = self._attached.known
        return self._model if attached is None else attached.served.name

    async def prepare(self) -> VerdictCheckpoint | None:
        """Find the model and its tokenizer, and compare golden log-odds.

        Raises:
            CriticServerError: the server does not have the model, or its answer is invalid.
            CheckpointError: the tokenizer is missing, or the golden log-odds differ.
        """
        with self._server.redacted():
            return (await self._current()).checkpoint

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """Read `[N]` verdicts on N prompts in one request, or more above `max_batch`. Raises `CriticError`."""
        with self._server.redacted():
            return await self._verdicts(prompts, words)

    async def _verdicts(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        for _ in range(_ATTEMPTS):
            attached = await self._current()
            spellings = Spellings.of(words, attached.tokenize)
            longest = max(map(len, spellings.prefixes))
            rows = [_row(prompt, attached, longest) for prompt in prompts]
            verdicts = await self._read(attached.served.name, rows, spellings)
            # After an interruption, another server may have answered: the answers count if it has the same model.
            if (await self._current()).same_as(attached):
                return verdicts
        raise self._unexpected(
            PATH,
            f"the model at this URL changed during each of {_ATTEMPTS} attempts, probably because servers of different "
            "models share it: give each model its own URL",
        )

    async def _current(self) -> _Attached:
        attached = await self._attached.get()
        if attached.interruptions != self._server.interruptions:
            self._attached.drop(attached)
            attached = await self._attached.get()
        return attached

    async def _attach(self) -> _Attached:
        served = chosen_model(await self._server.get(_MODELS), self._model, f"{self._server.base_url}{_MODELS}")
        interruptions = self._server.interruptions
        prefix_ids: tuple[int, ...] = ()
        tokenize, checkpoint = self._tokenize, None
        if tokenize is None:
            folder = self._folder
            if folder is None:
                local = self._server.may_name_folders
                folder = await asyncio.to_thread(served_folder, served.name, served.root, SERVED, local=local)
            tokenize = await asyncio.to_thread(tokenizer_of, folder)
            checkpoint = VerdictCheckpoint.load(folder) if (folder / FILE).is_file() else None
            prefix_ids = checkpoint.prefix_ids if checkpoint is not None else beginning_of(folder)
        if checkpoint is not None:
            where = f"critic {self.name}"
            checkpoint.check_prompts(tokenize, where)
            rows = [_joined(golden.token_ids) for golden in checkpoint.golden]
            verdicts = await self._read(served.name, rows, Spellings.of(checkpoint.words, tokenize))
            interruptions = self._server.interruptions
            checkpoint.check_log_odds(verdicts.log_odds, where, self._tolerance)

        def segment(text: str) -> _Segment:
            ids = tokenize(text) if text else ()
            return _Segment(len(ids), _joined(ids))

        remembered = lru_cache(maxsize=50_000)(segment)
        return _Attached(served, tokenize, remembered, prefix_ids, checkpoint, interruptions)

    async def _read(self, model: str, rows: Sequence[bytes], spellings: Spellings) -> Verdicts:
        """Read verdicts on rows of token ids. Extended rows follow their row, so that they find it in the cache."""
        prefixes, token_ids = spellings.prefixes, spellings.token_ids
        if len(token_ids) > MOST_TOKENS:
            raise ConfigurationError(
                f"the verdict words have {len(token_ids)} tokens, expected at most {MOST_TOKENS}: choose shorter words"
            )
        extended = [b",".join(filter(None, (row, _joined(prefix)))) for row in rows for prefix in prefixes]
        size = max(1, self._max_batch // len(prefixes)) * len(prefixes)
        requests = [extended[start : start + size] for start in range(0, len(extended), size)]
        bodies = [_body(model, request, token_ids) for request in requests]
        # Ids are separated by commas.
        bounds = [Bound(model, sum(row.count(b",") + 1 for row in request), len(request)) for request in requests]

        def count(place: int, used: Usage) -> None:
            # For several prompts, vLLM reports only the cached tokens of the last prompt.
            used = used if len(requests[place]) == 1 else replace(used, cached_tokens=0)
            self.usage += used
            record("critic", used, model=model)

        answers = await self._server.post(PATH, bodies, bounds, count=count)
        tables: list[dict[int, float]] = []
        for request, answer in zip(requests, answers, strict=True):
            tables += self._tables(answer, len(request), token_ids)
        step = len(prefixes)
        pairs = [
            spellings.verdict(dict(zip(prefixes, tables[start : start + step], strict=True)))
            for start in range(0, len(tables), step)
        ]
        good, bad = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        if np.any(good > math.log1p(ROUNDING)) or np.any(np.logaddexp(good, bad) > math.log1p(ROUNDING)):
            raise self._unexpected(
                PATH,
                f"a word has log-probability {max(good.max(), bad.max()):.3f}: expected log-probabilities (vLLM: "
                "--logprobs-mode raw_logprobs, the default)",
            )
        return Verdicts(good, bad, np.zeros(len(rows), dtype=np.bool_))

    def _tables(self, answer: Any, n: int, token_ids: Sequence[int]) -> list[dict[int, float]]:
        """Return the log-probabilities of the tokens after each of the n rows of a request."""
        try:
            choices = rows_of(answer, "choices", n)
        except ValueError as error:
            raise self._unexpected(PATH, f"{error}. Is it a vLLM server?") from error
        return [self._table(choice.get("logprobs"), token_ids) for choice in choices]

    def _table(self, logprobs: Any, token_ids: Sequence[int]) -> dict[int, float]:
        match logprobs:
            case {"top_logprobs": [dict() as first, *_]}:
                pass
            case _:
                raise self._unexpected(PATH, f"the answer has no log-probabilities. {_NOT_VLLM}")
        table = {}
        for token in token_ids:
            value = first.get(f"token_id:{token}")
            if value is None:
                raise self._unexpected(
                    PATH,
                    f"expected the log-probabilities of {len(token_ids)} tokens (logprob_token_ids), got those of "
                    f"{listed(sorted(first), 4)}. {_NOT_VLLM}",
                )
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._unexpected(PATH, f"expected the log-probability of token {token}, got {quoted(value, 200)}")
            if not math.isfinite(value):
                raise self._unexpected(
                    PATH, f"token {token} has log-probability {value}: the model's logits are broken: check the model"
                )
            if value < LEAST_LOGPROB:
                raise self._unexpected(PATH, f"token {token} has log-probability {value:g}. {OVERWRITTEN}")
            table[token] = float(value)
        return table

    def _unexpected(self, path: str, reason: str) -> CriticServerError:
        return CriticServerError(f"{self._server.base_url}{path}", reason)


def _row(prompt: VerdictPrompt, attached: _Attached, longest: int) -> bytes:
    """Return the token ids of a prompt without the oldest rounds if it is too long."""
    checkpoint, prefix_ids = attached.checkpoint, attached.prefix_ids
    task, *rounds, question = map(attached.segment, prompt)
    # The answer and the prefixes of the words must fit, too.
    limits = [attached.served.limit - longest - 1] if attached.served.limit else []
    limits += [checkpoint.max_tokens] if checkpoint is not None and checkpoint.max_tokens else []
    limit = min(limits) - question.length if limits else None
    lengths = [len(prefix_ids) + task.length, *(text.length for text in rounds)]
    kept = rounds[newest_start(lengths, limit) :]
    return b",".join(filter(None, (_joined(prefix_ids), *(text.ids for text in (task, *kept, question)))))


def _joined(ids: Sequence[int]) -> bytes:
    return ",".join(map(str, ids)).encode()


def _body(model: str, rows: Sequence[bytes], token_ids: Sequence[int]) -> bytes:
    """Build a request for the log-probabilities of some tokens after each row."""
    settings = {
        "model": model,
        "max_tokens": 1,
        # At temperature 1, the model's distribution equals the sampling distribution, whichever the server reports.
        "temperature": 1.0,
        "top_p": 1.0,
        "logprobs": 1,
        "logprob_token_ids": token_ids,
        # By token id, because different tokens may have the same text.
        "return_tokens_as_token_ids": True,
    }
    return b'{"prompt":[[%b]],%b' % (b"],[".join(rows), json.dumps(settings)[1:].encode())


_ATTEMPTS = 3
_NOT_VLLM = (
    "Use vLLM 0.26 or newer. Other servers, and vLLM before 0.26, ignore `logprob_token_ids`: read their top "
    "log-probabilities by verdict:provider:model"
)


Ids = tuple[int, ...]


@dataclass(frozen=True)
class Spellings:
    """The token sequences that write the two words."""

    good: tuple[Ids, ...]
    bad: tuple[Ids, ...]

    @classmethod
    def of(cls, words: Words, tokenize: Tokenize) -> Spellings:
        """Tokenize both words, with and without a space before them.

        Raises:
            ConfigurationError: the tokenizer cannot write a word, or a spelling of a word begins with a spelling of
                the other.
        """
        good, bad = (_spellings(word, tokenize) for word in words)
        for word, spellings in zip(words, (good, bad), strict=True):
            if not spellings:
                raise ConfigurationError(
                    f"the model's tokenizer has no tokens for the verdict word {quoted(word)}: choose words in its "
                    "vocabulary"
                )
        for left, right in product(good, bad):
            shorter = min(len(left), len(right))
            if left[:shorter] == right[:shorter]:
                raise ConfigurationError(
                    f"the verdict words {quoted(words[0])} and {quoted(words[1])} are ambiguous, because their tokens "
                    f"({list(left)}, {list(right)}) begin with one another: choose other words"
                )
        return cls(good, bad)

    @property
    def prefixes(self) -> tuple[Ids, ...]:
        """All proper prefixes of the spellings, starting with the empty sequence."""
        prefixes = (ids[:length] for ids in (*self.good, *self.bad) for length in range(len(ids)))
        return tuple(sorted(dict.fromkeys(prefixes), key=len))

    @property
    def token_ids(self) -> list[int]:
        """All tokens of the spellings."""
        return sorted({token for ids in (*self.good, *self.bad) for token in ids})

    def verdict(self, tables: Mapping[Ids, Mapping[int, float]]) -> tuple[float, float]:
        """Return (log p(GOOD), log p(BAD)) of a prompt.

        Args:
            tables: log-probabilities of `token_ids` after the prompt and each of `prefixes`.
        """

        def summed(spellings: Sequence[Ids]) -> float:
            paths = [sum(tables[ids[:n]][token] for n, token in enumerate(ids)) for ids in spellings]
            return float(np.logaddexp.reduce(paths))

        return summed(self.good), summed(self.bad)


def _spellings(word: str, tokenize: Tokenize) -> tuple[Ids, ...]:
    """Tokenize a word as a continuation, without and with a space before it."""
    unknown = _unknown(tokenize)
    context = tuple(tokenize(_CONTEXT))
    spellings: dict[Ids, None] = {}
    for text in (word.strip(), f" {word.strip()}"):
        # Some tokenizers prepend a space to every text, so the word is tokenized after a newline.
        whole = tuple(tokenize(_CONTEXT + text))
        ids = whole[len(context) :] if whole[: len(context)] == context else tuple(tokenize(text))
        if ids and unknown not in ids:
            spellings[ids] = None
    # The probability of a spelling includes that of spellings that begin with it.
    return tuple(ids for ids in spellings if not any(ids[:n] in spellings for n in range(1, len(ids))))


def _unknown(tokenize: Tokenize) -> int | None:
    """Return the token for unknown text, or None: two private-use characters with the same last token reveal it."""
    first, second = (tuple(tokenize(text))[-1:] for text in _PRIVATE_USE)
    return first[0] if first and first == second else None


_CONTEXT = "\n"
_PRIVATE_USE = ("\ue000", "\uf8ff")
