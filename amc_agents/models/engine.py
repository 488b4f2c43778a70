"""Requests and answers of a batched engine, and the protocol of its decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray, IntArray

Float32Array = npt.NDArray[np.float32]

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters of a request."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token (greedy decoding)."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens with at least this probability."""
    max_tokens: int = 64
    """Maximum number of generated tokens, including the end token."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer and are not part of it."""
    n: int = 1
    """Number of candidates."""
    logprobs: bool = False
    """Report the natural log-probability of each token under the model, before temperature and top-p."""
    top_logprobs: int = 0
    """Number of likeliest alternatives reported for each token."""

    def __post_init__(self) -> None:
        """Check ranges. Raises `ConfigurationError`."""
        if not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigurationError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p must be in (0, 1], got {self.top_p}")
        for name in ("max_tokens", "n"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        if any(not text for text in self.stop):
            raise ConfigurationError("stop contains an empty text, which would end every answer at once: remove it")
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise ConfigurationError(f"top_logprobs must be in [0, {MAX_TOP_LOGPROBS}], got {self.top_logprobs}")
        if self.top_logprobs and not self.logprobs:
            raise ConfigurationError(f"top_logprobs={self.top_logprobs} requires logprobs=True")


class TokenLogprob(NamedTuple):
    """A generated token and its log-probability."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token, log-probability) of the likeliest tokens, in descending order."""


TokenListener = Callable[[str, "TokenLogprob | None"], None]
"""Called on the worker thread with each new piece of final text."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt with its sampling parameters and seed."""

    prompt: tuple[int, ...]
    """Token ids."""
    sampling: Sampling
    seed: int
    """Seeds the request's own random stream: the answer does not depend on other requests of the batch."""
    on_text: TokenListener | None = None
    """Receives the text of the only candidate as it is generated."""


class Completion(NamedTuple):
    """A complete candidate."""

    text: str
    tokens: tuple[int, ...]
    """All generated tokens, including the end token."""
    finish_reason: str
    """"stop" (end token or stop text) or "length"."""
    logprobs: tuple[TokenLogprob, ...]
    """One entry per token, including the end token; empty unless requested."""


class Answer(NamedTuple):
    """All candidates of a request, and its token counts."""

    completions: tuple[Completion, ...]
    prompt_tokens: int
    cached_tokens: int
    """Number of prompt tokens that the cache answered."""


class Joined(NamedTuple):
    """New rows of a decoder's batch."""

    logits: Float32Array
    """`[R, V]` logits of the token after the prompt of each new row."""
    cached: tuple[int, ...]
    """`[R]` number of cached tokens of each new row's prompt."""
    order: tuple[int, ...]
    """`[R]` index of the prompt of each new row; equal prompts keep their order."""


class Decoder(Protocol):
    """A batch of growing token sequences; used by a single thread at a time."""

    @property
    def context(self) -> int:
        """Maximum number of tokens of a sequence, prompt and answer together."""
        ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of generated tokens without special tokens."""
        ...

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Joined:
        """Read prompts into new rows after the existing rows."""
        ...

    def step(self, tokens: npt.NDArray[np.int64]) -> Float32Array:
        """Append one token to each of the B rows and return `[B, V]` logits of the next token."""
        ...

    def leave(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        ...

    def clear(self) -> None:
        """Remove all rows, after a failure."""
        ...


def choose(logits: Float32Array, temperature: FloatArray, top_p: FloatArray, uniform: FloatArray) -> IntArray:
    """Draw one token per row by inverting the cumulative distribution at the row's uniform number.

    A row's token depends only on its logits and its number. Logits differ in their last bits (1e-6) between batch
    shapes; a token changes with them only if the uniform number falls that close to a boundary.

    Args:
        logits: `[B, V]`.
        temperature: `[B]`; 0 selects the likeliest token.
        top_p: `[B]` in (0, 1].
        uniform: `[B]` in [0, 1).

    Returns:
        `[B]` token ids.
    """
    greedy = temperature == 0
    if greedy.all():
        return np.asarray(np.argmax(logits, axis=-1))
    scale = np.where(greedy, 1.0, temperature).astype(np.float32)
    weights = np.exp((logits - logits.max(axis=-1, keepdims=True)) / scale[:, None])
    if (top_p < 1).any():
        weights = _nucleus(weights, top_p)
    cumulative = np.cumsum(weights, axis=-1, dtype=np.float64)
    total = cumulative[:, -1]
    # The strict comparison below never draws a token of weight 0, and the cap ensures this when u * total rounds up.
    target = np.minimum(uniform * total, np.nextafter(total, 0))
    tokens = (cumulative <= target[:, None]).sum(axis=-1)
    if greedy.any():
        tokens = np.where(greedy, np.argmax(logits, axis=-1), tokens)
    return np.asarray(tokens)


def _nucleus(weights: Float32Array, top_p: FloatArray) -> Float32Array:
    """Set the weights `[B, V]` of all tokens outside the smallest set with mass `top_p` to 0."""
    order = np.argsort(-weights, axis=-1, kind="stable")
    ranked = np.take_along_axis(weights, order, axis=-1).astype(np.float64)
    before = np.cumsum(ranked, axis=-1) - ranked
    # No mass precedes the likeliest token, so at least one token is always kept.
    keep = before < top_p[:, None] * ranked.sum(axis=-1, keepdims=True)
    kept = np.zeros_like(weights)
    np.put_along_axis(kept, order, np.where(keep, ranked, 0.0).astype(np.float32), axis=-1)
    return kept


def log_softmax(logits: Float32Array) -> npt.NDArray[np.float64]:
    """Return natural log-probabilities `[B, V]` at temperature 1."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), dtype=np.float64)
