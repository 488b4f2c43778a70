"""The probabilities of two words as the next text, read from a model's logits on a vLLM server.

A word is the sum of its spellings in tokens, with and without a space before it; a spelling of several tokens is the
product of their probabilities, each read after a prompt that is longer by the tokens before it. These longer prompts
go into the same request. (The alternative, whole spellings sent with `prompt_logprobs`, reads nothing from the prefix
cache: on vLLM 0.32 each computed its whole prompt anew. Of 4 prompts that share 300 tokens never seen before, sent in
one request with `logprob_token_ids`, 864 of 1204 tokens came from the cache, in blocks of 32.)
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from amc_agents.concurrency.once import Once
from amc_agents.critics.render import newest_start
from amc_agents.critics.server.answers import (
    LEAST_LOGPROB,
    OVERWRITTEN,
    ServedModel,
    chosen_model,
    rows_of,
    usage_of,
)
from amc_agents.critics.server.folder import local_folder, served_folder, tokenizer_of
from amc_agents.critics.server.http import ModelServer
from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.verdict.checkpoint import (
    FILE,
    SERVED,
    VerdictCheckpoint,
    VerdictPrompt,
    Words,
    beginning_of,
)
from amc_agents.critics.verdict.spellings import Spellings
from amc_agents.errors import ConfigurationError, CriticServerError
from amc_agents.quoting import listed, quoted
from amc_agents.types import FloatArray
from amc_agents.usage import Usage, record

PATH = "/v1/completions"
_MODELS = "/v1/models"
MOST_TOKENS = 128
"""Tokens whose probabilities vLLM gives at one place."""
ROUNDING = 1e-3
"""What rounding may add to a probability of 1."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What a model thinks of some prompts."""

    log_good: FloatArray
    """`[N]` log-probability that the word for success comes next."""
    log_bad: FloatArray
    """`[N]` the same for failure."""
    flagged: npt.NDArray[np.bool_]
    """`[N]` True where a word was not reported and only bounded (|log-odds| is then a lower bound), or where both have
    too little probability."""

    @property
    def mass(self) -> FloatArray:
        """`[N]` p(GOOD) + p(BAD): how much of the probability the two words have."""
        return np.exp(np.logaddexp(self.log_good, self.log_bad))

    @property
    def log_odds(self) -> FloatArray:
        """`[N]` log p(GOOD) - log p(BAD)."""
        return self.log_good - self.log_bad


class VerdictReader(Protocol):
    """Reads verdicts of some model."""

    name: str

    @property
    def usage(self) -> Usage:
        """All that it was asked so far."""
        ...

    async def prepare(self) -> VerdictCheckpoint | None:
        """Called before each use: attach to the model, where need be. None: it was not trained for verdicts."""
        ...

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """`[N]` verdicts on N distinct prompts. Raises `CriticError`."""
        ...


class _Segment(NamedTuple):
    """A text in tokens, as it is sent."""

    length: int
    ids: bytes
    """Joined by commas."""


class _Attached(NamedTuple):
    """A served model, as it was found."""

    served: ServedModel
    tokenize: Tokenize
    segment: Callable[[str], _Segment]
    """Tokenizes a text, and remembers it: siblings share their past, and tokens are many."""
    prefix_ids: tuple[int, ...]
    """Ids put before the first text."""
    checkpoint: VerdictCheckpoint | None
    interruptions: int
    """Of the server's connection, when it had shown what it is."""

    def same_as(self, other: _Attached) -> bool:
        """Whether prompts are written, and answers read, as for another model."""
        return (self.served, self.prefix_ids, self.checkpoint) == (other.served, other.prefix_ids, other.checkpoint)


class CompletionsReader:
    """Reads the probabilities of chosen tokens from vLLM's `/v1/completions` (`logprob_token_ids`).

    Prompts are tokenized here, each text on its own, and sent as ids, all of a call in one request. At the first use,
    and when the server was gone in between, a model with a checkpoint has to give its golden log-odds.

    Args:
        server: where to ask.
        model: its name; None: the only one that the server has.
        checkpoint: the model's folder (tokenizer.json, and amc_verdict.json if it was trained for verdicts); None: it
            is looked for, see `folder.served_folder`.
        tokenize: instead of the folder's tokenizer; no folder is then looked for.
        max_batch: the most rows of one request; a prompt takes one, and one more per proper prefix of the spellings.
        tolerance: how far golden log-odds may be; None: what the checkpoint says.
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
        # A wrong one is refused now, not at the first use.
        self._folder = local_folder(checkpoint, model, SERVED, trusted=server.trusted)
        self._server, self._model, self._tokenize = server, model, tokenize
        self._max_batch, self._tolerance = max_batch, tolerance
        self._attached = Once(self._attach)

    async def prepare(self) -> VerdictCheckpoint | None:
        """Find model and tokenizer, and compare golden log-odds.

        Raises:
            CriticServerError: the server has no such model, or did not answer as expected.
            CheckpointError: no tokenizer was found, or the golden log-odds are not reproduced.
        """
        with self._server.redacted():
            return (await self._current()).checkpoint

    async def read(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        """`[N]` verdicts on N prompts, in one request (more above `max_batch`). Raises `CriticError`."""
        with self._server.redacted():
            return await self._verdicts(prompts, words)

    async def _verdicts(self, prompts: Sequence[VerdictPrompt], words: Words) -> Verdicts:
        for _ in range(_ATTEMPTS):
            attached = await self._current()
            spellings = Spellings.of(words, attached.tokenize)
            longest = max(map(len, spellings.prefixes))
            rows = [_row(prompt, attached, longest) for prompt in prompts]
            verdicts = await self._read(attached.served.name, rows, spellings)
            # Where the server was gone in between, another one may have answered: the answers count once it has
            # proved to be the same.
            if (await self._current()).same_as(attached):
                return verdicts
        raise self._unexpected(
            PATH,
            f"the model behind this address changed during each of {_ATTEMPTS} attempts: are servers of different "
            "models behind it? Give each model an address of its own",
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
            rows = [_joined(one.token_ids) for one in checkpoint.golden]
            verdicts = await self._read(served.name, rows, Spellings.of(checkpoint.words, tokenize))
            interruptions = self._server.interruptions
            checkpoint.check_log_odds(verdicts.log_odds, where, self._tolerance)

        def segment(text: str) -> _Segment:
            ids = tokenize(text) if text else ()
            return _Segment(len(ids), _joined(ids))

        remembered = lru_cache(maxsize=50_000)(segment)
        return _Attached(served, tokenize, remembered, prefix_ids, checkpoint, interruptions)

    async def _read(self, model: str, rows: Sequence[bytes], spellings: Spellings) -> Verdicts:
        """Ask about rows of token ids. A row and its longer ones stay together: the longer ones then find it cached."""
        prefixes, token_ids = spellings.prefixes, spellings.token_ids
        if len(token_ids) > MOST_TOKENS:
            raise ConfigurationError(
                f"the verdict words take {len(token_ids)} tokens, at most {MOST_TOKENS} can be read"
            )
        asked = [b",".join(filter(None, (row, _joined(prefix)))) for row in rows for prefix in prefixes]
        size = max(1, self._max_batch // len(prefixes)) * len(prefixes)
        requests = [asked[start : start + size] for start in range(0, len(asked), size)]
        answers = await self._server.post(PATH, [_body(model, request, token_ids) for request in requests])
        self._count(model, requests, answers)
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
                f"a word has log-probability {max(good.max(), bad.max()):.3f}, more than certain: these are no "
                "log-probabilities (vLLM: --logprobs-mode raw_logprobs, the default)",
            )
        return Verdicts(good, bad, np.zeros(len(rows), dtype=np.bool_))

    def _tables(self, answer: Any, n: int, token_ids: Sequence[int]) -> list[dict[int, float]]:
        """`[n]` log-probability of each asked token, after each row of one request."""
        try:
            choices = rows_of(answer, "choices", n)
        except ValueError as error:
            raise self._unexpected(PATH, str(error)) from error
        return [self._table(choice.get("logprobs"), token_ids) for choice in choices]

    def _table(self, logprobs: Any, token_ids: Sequence[int]) -> dict[int, float]:
        match logprobs:
            case {"top_logprobs": [dict() as first, *_]}:
                pass
            case _:
                raise self._unexpected(PATH, f"the answer has no log-probabilities. {_NOT_VLLM}")
        found = {}
        for token in token_ids:
            value = first.get(f"token_id:{token}")
            if value is None:
                raise self._unexpected(
                    PATH,
                    f"the log-probabilities of {len(token_ids)} tokens were asked for (logprob_token_ids), and those "
                    f"of {listed(sorted(first), 4)} came. {_NOT_VLLM}",
                )
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._unexpected(PATH, f"expected the log-probability of token {token}, got {quoted(value)}")
            if not math.isfinite(value):
                raise self._unexpected(
                    PATH, f"token {token} has log-probability {value}: the model's logits are broken"
                )
            if value < LEAST_LOGPROB:
                raise self._unexpected(PATH, f"token {token} has log-probability {value:g}. {OVERWRITTEN}")
            found[token] = float(value)
        return found

    def _count(self, model: str, requests: Sequence[Sequence[bytes]], answers: Sequence[Any]) -> None:
        used = Usage()
        for request, answer in zip(requests, answers, strict=True):
            told = usage_of(answer)
            # vLLM says of a request with several prompts only what the last one found in its cache.
            used += told if len(request) == 1 else replace(told, cached_tokens=0)
        self.usage += used
        record("critic", used, model=model)

    def _unexpected(self, path: str, reason: str) -> CriticServerError:
        return CriticServerError(f"{self._server.base_url}{path}", reason)


def _row(prompt: VerdictPrompt, attached: _Attached, longest: int) -> bytes:
    """Token ids of a prompt; rounds are dropped by the rule of `windows` where it is too long."""
    checkpoint, prefix_ids = attached.checkpoint, attached.prefix_ids
    task, *rounds, question = map(attached.segment, prompt)
    # The answer, and what stands before its last token, have to fit too.
    limits = [attached.served.limit - longest - 1] if attached.served.limit else []
    limits += [checkpoint.max_tokens] if checkpoint is not None and checkpoint.max_tokens else []
    limit = min(limits) - question.length if limits else None
    lengths = [len(prefix_ids) + task.length, *(one.length for one in rounds)]
    kept = rounds[newest_start(lengths, limit) :]
    return b",".join(filter(None, (_joined(prefix_ids), *(one.ids for one in (task, *kept, question)))))


def _joined(ids: Sequence[int]) -> bytes:
    return ",".join(map(str, ids)).encode()


def _body(model: str, rows: Sequence[bytes], token_ids: Sequence[int]) -> bytes:
    """A request for the log-probabilities of some tokens after each row."""
    settings = {
        "model": model,
        "max_tokens": 1,
        # At temperature 1 even a server that reports what it samples from reports the model's own.
        "temperature": 1.0,
        "top_p": 1.0,
        "logprobs": 1,
        "logprob_token_ids": token_ids,
        # Tokens are named by their ids: the texts of different ones may be the same.
        "return_tokens_as_token_ids": True,
    }
    return b'{"prompt":[[%b]],%b' % (b"],[".join(rows), json.dumps(settings)[1:].encode())


_ATTEMPTS = 3
_NOT_VLLM = (
    "Is it a vLLM server, and a recent one? Other servers ignore `logprob_token_ids`: read them by their top "
    "log-probabilities, verdict:provider:model"
)
