"""Batched decoding and scoring with a `NumpyLlama` and a prefix cache, for the chat model and for critics."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded.cache import KVRows, Match, PrefixCache, Tokens
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.engine import Float32Array, Joined
from amc_agents.models.tokenizers import WordTokenizer
from amc_agents.types import FloatArray, IntArray

# A prefix of at least this length that several new prompts share is computed once, on its own.
_WORTH_SHARING = 24
# Attention scores per prefill and head; bounds the memory of a prefill to about 50 MB.
_PREFILL_SCORES = 4_000_000
_SCORED_ROWS = 64
# `values_at` reads this many sequences at a time, in pieces of this many tokens.
_SEQUENCES_AT_A_TIME = 8
_PIECE = 64


class _Prompt(NamedTuple):
    """A prompt to read, and the prefix of it that is cached."""

    tokens: Tokens
    known: Match

    @property
    def new(self) -> int:
        """Number of tokens to compute."""
        return len(self.tokens) - self.known.length


CACHE_TOKENS = 60_000
"""Capacity of a prefix cache, which keeps keys and values after a sequence has left the batch."""


class LlamaBatch:
    """Growing sequences in consecutive rows; implements the row operations of `amc_agents.models.engine.Decoder`.

    Args:
        model: the weights.
    """

    def __init__(self, model: NumpyLlama, cache_tokens: int = CACHE_TOKENS) -> None:
        self.model = model
        self.cache = PrefixCache(cache_tokens)
        self._rows = model.new_rows()
        self._sequences: list[list[int]] = []

    @property
    def context(self) -> int:
        """Maximum number of tokens of a sequence."""
        return self.model.config.context

    def join(self, prompts: Sequence[Tokens]) -> Joined:
        """Read prompts into new rows; see `Decoder.join`."""
        hidden, cached, order = self.read(prompts)
        return Joined(self.model.logits(hidden), cached, order)

    def read(self, prompts: Sequence[Tokens]) -> tuple[Float32Array, tuple[int, ...], tuple[int, ...]]:
        """Read prompts into new rows; equal prompts and cached prefixes are computed once.

        Returns:
            In the order of the new rows: `[R, D]` final hidden states of the last tokens, the number of cached tokens
            of each prompt, and the index of the prompt that each row contains.
        """
        first = len(self._sequences)
        copies: dict[Tokens, list[int]] = {}
        for index, tokens in enumerate(prompts):
            copies.setdefault(tokens, []).append(index)
        shared = _shared_prefixes(sorted(copies), self.cache)
        if shared:
            self.read(shared)
            self.drop(first)
        # The last token is always computed, because its hidden state is returned.
        distinct = [_Prompt(tokens, self.cache.match(tokens, len(tokens) - 1)) for tokens in copies]
        distinct.sort(key=lambda prompt: prompt.new)
        hidden = np.concatenate([self._prefill(group) for group in _groups(distinct)])
        order = [copies[prompt.tokens][0] for prompt in distinct]
        cached = [prompt.known.length for prompt in distinct]
        sources = list(range(len(distinct)))
        for source, prompt in enumerate(distinct):
            for index in copies[prompt.tokens][1:]:
                self._rows.copy(first + source, len(self._sequences))
                self._sequences.append(list(prompt.tokens))
                order.append(index)
                cached.append(len(prompt.tokens))
                sources.append(source)
        return hidden[sources], tuple(cached), tuple(order)

    def step(self, tokens: IntArray) -> Float32Array:
        """Append one token to each row and return `[B, V]` logits of the next token."""
        hidden = self.model.forward(tokens, np.ones(len(tokens), dtype=np.int64), self._rows, 0)
        for sequence, token in zip(self._sequences, tokens.tolist(), strict=True):
            sequence.append(token)
        return self.model.logits(hidden)

    def leave(self, row: int) -> None:
        """Cache the keys and values of a row, and move the last row into its place."""
        self.cache.insert(tuple(self._sequences[row]), lambda start, end: self._rows.segment(row, start, end))
        last = len(self._sequences) - 1
        if row != last:
            self._rows.copy(last, row)
            self._sequences[row] = self._sequences[last]
        self._sequences.pop()

    def drop(self, first: int) -> None:
        """Remove all rows from `first` on; their prompts stay in the cache."""
        del self._sequences[first:]

    def clear(self) -> None:
        """Remove all rows."""
        self.drop(0)

    def _prefill(self, group: Sequence[_Prompt]) -> Float32Array:
        """Read a group of prompts into the next rows and return `[R, D]` hidden states of their last tokens."""
        first = len(self._sequences)
        for row, prompt in enumerate(group, first):
            self._rows.load(row, prompt.known.segments, prompt.new)
        counts = np.array([prompt.new for prompt in group])
        tokens = np.array([token for prompt in group for token in prompt.tokens[prompt.known.length :]])
        hidden = self.model.forward(tokens, counts, self._rows, first)
        for row, prompt in enumerate(group, first):
            self._sequences.append(list(prompt.tokens))
            self._remember(row, prompt.tokens)
        return np.asarray(hidden[np.cumsum(counts) - 1])

    def _remember(self, row: int, tokens: Tokens) -> None:
        self.cache.insert(tokens, lambda start, end: self._rows.segment(row, start, end))


class EmbeddedDecoder(LlamaBatch):
    """A `LlamaBatch` with its tokenizer: the batcher's `amc_agents.models.engine.Decoder`."""

    def __init__(self, model: NumpyLlama, tokenizer: WordTokenizer, cache_tokens: int = CACHE_TOKENS) -> None:
        super().__init__(model, cache_tokens)
        self.tokenizer = tokenizer
        self.end_tokens = model.config.end_tokens | {tokenizer.end_id}

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens without special tokens."""
        return self.tokenizer.decode(tokens)


class LlamaScorer:
    """Compute hidden states and values of many sequences for a critic; each call computes only new tokens.

    Thread-safe.
    """

    def __init__(self, model: NumpyLlama) -> None:
        self._batch = LlamaBatch(model)
        self._lock = threading.Lock()
        self.cached_tokens = 0
        """Number of tokens so far that the prefix cache answered."""

    @property
    def model(self) -> NumpyLlama:
        """The weights."""
        return self._batch.model

    def last_hidden(self, sequences: Sequence[Sequence[int]]) -> Float32Array:
        """Return the normed final hidden states of the last tokens, `[N, D]`.

        Raises:
            ConfigurationError: a sequence is empty or longer than the model's context.
        """
        prompts = self._prompts(sequences)
        result = np.empty((len(prompts), self.model.config.hidden), dtype=np.float32)
        with self._lock:
            for start in range(0, len(prompts), _SCORED_ROWS):
                try:
                    hidden, cached, order = self._batch.read(prompts[start : start + _SCORED_ROWS])
                finally:
                    self._batch.clear()
                result[start + np.array(order)] = hidden
                self.cached_tokens += sum(cached)
        return result

    def values(self, sequences: Sequence[Sequence[int]]) -> FloatArray:
        """Return the value head's output at the last token of each sequence, `[N]`, in the head's own units."""
        if not sequences:
            return np.zeros(0)
        return np.asarray(self.model.scores(self.last_hidden(sequences)), dtype=np.float64)

    def values_at(self, sequences: Sequence[Sequence[int]], marks: Sequence[Sequence[int]]) -> FloatArray:
        """Return the value head's output at the marked tokens, sequence by sequence, in the head's own units.

        Bypasses the prefix cache, since each sequence of a dataset is read once.

        Args:
            sequences: token ids.
            marks: for each sequence, the ascending indices of the tokens at which the head is read.

        Raises:
            ConfigurationError: a sequence is empty or longer than the model's context.
        """
        prompts = self._prompts(sequences)
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        rows = self.model.new_rows()
        scores_of: dict[int, FloatArray] = {}
        for start in range(0, len(order), _SEQUENCES_AT_A_TIME):
            chosen = order[start : start + _SEQUENCES_AT_A_TIME]
            scores = self._read_in_pieces(
                [prompts[index] for index in chosen], [marks[index] for index in chosen], rows
            )
            scores_of |= dict(zip(chosen, scores, strict=True))
        return np.concatenate([scores_of[index] for index in range(len(prompts))]) if prompts else np.zeros(0)

    def _read_in_pieces(
        self, prompts: Sequence[Tokens], marks: Sequence[Sequence[int]], rows: KVRows
    ) -> list[FloatArray]:
        """Return the value head's output at the marks of a few sequences, which are sorted longest first."""
        lengths = np.array([len(tokens) for tokens in prompts])
        rows.reserve(len(prompts), int(lengths[0]))
        # Old keys and values need no clearing: a token attends only to its own past.
        rows.lengths[:] = 0
        scores: list[list[FloatArray]] = [[] for _ in prompts]
        # Pieces waste little attention on later tokens, and their intermediate results fit the CPU cache.
        for at in range(0, int(lengths[0]), _PIECE):
            counts = np.minimum(lengths[lengths > at] - at, _PIECE)
            tokens = [prompt[at : at + _PIECE] for prompt in prompts[: len(counts)]]
            hidden = self.model.forward(np.concatenate(tokens), counts, rows, 0)
            for index, first in enumerate(np.cumsum(counts) - counts):
                here = [int(first) + mark - at for mark in marks[index] if at <= mark < at + _PIECE]
                scores[index].append(self.model.scores(hidden[here]).astype(np.float64))
        return [np.concatenate(parts) for parts in scores]

    def _prompts(self, sequences: Sequence[Sequence[int]]) -> list[Tokens]:
        """Return the sequences as tuples. Raises `ConfigurationError` if a sequence is empty or too long."""
        context = self._batch.context
        for sequence in sequences:
            if not 0 < len(sequence) <= context:
                raise ConfigurationError(f"a sequence has {len(sequence)} tokens, expected 1 to {context}: shorten it")
        return [tuple(sequence) for sequence in sequences]


def _groups(prompts: Sequence[_Prompt]) -> list[list[_Prompt]]:
    """Group prompts, sorted by new tokens, so that padding to the widest wastes little time and memory."""
    groups: list[list[_Prompt]] = []
    longest = 0
    for prompt in prompts:
        longest = max(longest, len(prompt.tokens)) if groups else len(prompt.tokens)
        if groups:
            size = (len(groups[-1]) + 1) * prompt.new * longest
            if prompt.new <= 2 * groups[-1][0].new + 8 and size <= _PREFILL_SCORES:
                groups[-1].append(prompt)
                continue
        groups.append([prompt])
        longest = len(prompt.tokens)
    return groups


def _shared_prefixes(prompts: Sequence[Tokens], cache: PrefixCache) -> list[Tokens]:
    """Return uncached prefixes that several of the sorted prompts share, the shortest of each family."""
    shared: list[Tokens] = []
    for left, right in pairwise(prompts):
        limit = min(len(left), len(right)) - 1
        common = next((i for i in range(limit) if left[i] != right[i]), limit)
        if common < _WORTH_SHARING or (shared and left[: len(shared[-1])] == shared[-1] and common >= len(shared[-1])):
            continue
        if common - cache.match(left, common).length >= _WORTH_SHARING:
            prefix = left[:common]
            if shared and shared[-1][:common] == prefix:
                shared.pop()
            shared.append(prefix)
    return shared
