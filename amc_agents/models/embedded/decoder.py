"""Batches of sequences over a `NumpyLlama`, with a prefix cache: the chat model's decoder and the critic's scorer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.models.embedded.kv_rows import KVRows
from amc_agents.models.embedded.llama import NumpyLlama
from amc_agents.models.embedded.prefix_cache import Match, PrefixCache, Tokens
from amc_agents.models.embedded.tokenizer import WordTokenizer
from amc_agents.models.engine import Float32Array, Joined
from amc_agents.types import FloatArray, IntArray

# A prefix that several new prompts share is read once on its own when it is at least this long.
_WORTH_SHARING = 24
# Attention scores that one prefill may hold at once, heads not counted: bounds its memory to some 50 MB.
_PREFILL_SCORES = 4_000_000
_SCORED_ROWS = 64
# Of whole sequences: how many are read at once, and how many tokens of each at a time.
_SIDE_BY_SIDE = 8
_PIECE = 64


class _Prompt(NamedTuple):
    """A prompt about to be read, and what is known of it."""

    tokens: Tokens
    known: Match

    @property
    def new(self) -> int:
        """Tokens that have to be computed."""
        return len(self.tokens) - self.known.length


class LlamaBatch:
    """Growing sequences in consecutive rows; implements `amc_agents.models.engine.Decoder`'s row operations.

    Args:
        model: the weights.
        cache_tokens: tokens whose keys and values are remembered after their sequence has left.
    """

    def __init__(self, model: NumpyLlama, cache_tokens: int = 60_000) -> None:
        self.model = model
        self.cache = PrefixCache(cache_tokens)
        self._rows = model.new_rows()
        self._sequences: list[list[int]] = []

    @property
    def context(self) -> int:
        """Tokens that a sequence may have."""
        return self.model.config.context

    def join(self, prompts: Sequence[Tokens]) -> Joined:
        """Read prompts into new rows: see `Decoder.join`."""
        hidden, cached, order = self.read(prompts)
        return Joined(self.model.logits(hidden), cached, order)

    def read(self, prompts: Sequence[Tokens]) -> tuple[Float32Array, tuple[int, ...], tuple[int, ...]]:
        """Read prompts into new rows; equal prompts and known prefixes are computed once.

        Returns:
            In the new rows' order: `[R, D]` final hidden states of the last tokens, the number of tokens of each
            prompt that were not computed, and which prompt each row holds.
        """
        first = len(self._sequences)
        copies: dict[Tokens, list[int]] = {}
        for index, tokens in enumerate(prompts):
            copies.setdefault(tokens, []).append(index)
        shared = _shared_prefixes(sorted(copies), self.cache)
        if shared:
            self.read(shared)
            self.drop(first)
        # The last token is always computed: its hidden state is what is asked for.
        found = [_Prompt(tokens, self.cache.match(tokens, len(tokens) - 1)) for tokens in copies]
        found.sort(key=lambda prompt: prompt.new)
        hidden = np.concatenate([self._prefill(group) for group in _groups(found)])
        order = [copies[prompt.tokens][0] for prompt in found]
        cached = [prompt.known.length for prompt in found]
        sources = list(range(len(found)))
        for source, prompt in enumerate(found):
            for index in copies[prompt.tokens][1:]:
                self._rows.copy(first + source, len(self._sequences))
                self._sequences.append(list(prompt.tokens))
                order.append(index)
                cached.append(len(prompt.tokens))
                sources.append(source)
        return hidden[sources], tuple(cached), tuple(order)

    def step(self, tokens: IntArray) -> Float32Array:
        """Append one token to each row; `[B, V]` logits of the next."""
        hidden = self.model.forward(tokens, np.ones(len(tokens), dtype=np.int64), self._rows, 0)
        for sequence, token in zip(self._sequences, tokens.tolist(), strict=True):
            sequence.append(token)
        return self.model.logits(hidden)

    def leave(self, row: int) -> None:
        """Remember a row's keys and values, and let the last row take its place."""
        self.cache.insert(tuple(self._sequences[row]), lambda start, end: self._rows.segment(row, start, end))
        last = len(self._sequences) - 1
        if row != last:
            self._rows.copy(last, row)
            self._sequences[row] = self._sequences[last]
        self._sequences.pop()

    def drop(self, first: int) -> None:
        """End all rows from `first` on; what was read of them is in the cache."""
        del self._sequences[first:]

    def clear(self) -> None:
        """End all rows."""
        self.drop(0)

    def _prefill(self, group: Sequence[_Prompt]) -> Float32Array:
        """Read a group of prompts into the next rows: `[R, D]` hidden states of their last tokens."""
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
    """A `LlamaBatch` with its tokenizer: what the batcher drives (`amc_agents.models.engine.Decoder`)."""

    def __init__(self, model: NumpyLlama, tokenizer: WordTokenizer, cache_tokens: int = 60_000) -> None:
        super().__init__(model, cache_tokens)
        self.tokenizer = tokenizer
        self.end_tokens = model.config.end_tokens | {tokenizer.end_id}

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of written tokens, special tokens left out."""
        return self.tokenizer.decode(tokens)


class LlamaScorer:
    """Reads many sequences at once for a critic: hidden states and values, each call paying for new tokens only.

    Safe to call from several threads.
    """

    def __init__(self, model: NumpyLlama, cache_tokens: int = 60_000) -> None:
        self._batch = LlamaBatch(model, cache_tokens)
        self._lock = threading.Lock()
        self.cached_tokens = 0
        """Tokens read since the start that were not computed again."""

    @property
    def model(self) -> NumpyLlama:
        """The weights."""
        return self._batch.model

    def last_hidden(self, sequences: Sequence[Sequence[int]]) -> Float32Array:
        """`[N, D]` normed final hidden states of the last tokens.

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
        """`[N]` the value head's output at the last token of each sequence, in the head's own units."""
        if not sequences:
            return np.zeros(0)
        return np.asarray(self.model.scores(self.last_hidden(sequences)), dtype=np.float64)

    def values_at(self, sequences: Sequence[Sequence[int]], marks: Sequence[Sequence[int]]) -> FloatArray:
        """The value head's output at the marked tokens, sequence after sequence, in the head's own units.

        Each sequence is read once, past the cache: nothing of a whole dataset is asked for again.

        Args:
            sequences: token ids.
            marks: for each sequence, the indices of its tokens at which the head is read, rising.

        Raises:
            ConfigurationError: a sequence is empty or longer than the model's context.
        """
        prompts = self._prompts(sequences)
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        rows = self.model.new_rows()
        found: dict[int, FloatArray] = {}
        for start in range(0, len(order), _SIDE_BY_SIDE):
            chosen = order[start : start + _SIDE_BY_SIDE]
            scores = self._read_in_pieces(
                [prompts[index] for index in chosen], [marks[index] for index in chosen], rows
            )
            found |= dict(zip(chosen, scores, strict=True))
        return np.concatenate([found[index] for index in range(len(prompts))]) if prompts else np.zeros(0)

    def _read_in_pieces(
        self, prompts: Sequence[Tokens], marks: Sequence[Sequence[int]], rows: KVRows
    ) -> list[FloatArray]:
        """The value head at the marks of a few sequences, longest first."""
        lengths = np.array([len(tokens) for tokens in prompts])
        rows.reserve(len(prompts), int(lengths[0]))
        # What others have left there lies beyond each new token's own past, which is all that it sees.
        rows.lengths[:] = 0
        found: list[list[FloatArray]] = [[] for _ in prompts]
        # In pieces: a token is compared with few that come after it, and the processor's cache holds what is computed.
        for at in range(0, int(lengths[0]), _PIECE):
            counts = np.minimum(lengths[lengths > at] - at, _PIECE)
            tokens = [prompt[at : at + _PIECE] for prompt in prompts[: len(counts)]]
            hidden = self.model.forward(np.concatenate(tokens), counts, rows, 0)
            for index, first in enumerate(np.cumsum(counts) - counts):
                here = [int(first) + mark - at for mark in marks[index] if at <= mark < at + _PIECE]
                found[index].append(self.model.scores(hidden[here]).astype(np.float64))
        return [np.concatenate(parts) for parts in found]

    def _prompts(self, sequences: Sequence[Sequence[int]]) -> list[Tokens]:
        """The sequences as they can be read. Raises `ConfigurationError` where one is empty or too long."""
        context = self._batch.context
        for sequence in sequences:
            if not 0 < len(sequence) <= context:
                raise ConfigurationError(f"a sequence has {len(sequence)} tokens; this model reads 1 to {context}")
        return [tuple(sequence) for sequence in sequences]


def _groups(prompts: Sequence[_Prompt]) -> list[list[_Prompt]]:
    """Split prompts, sorted by new tokens, where padding to the widest would waste much or take too much memory."""
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
    """Prefixes that several of the sorted prompts share and that the cache does not hold: shortest of each family."""
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
