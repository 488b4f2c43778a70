"""What a chat model asks of the machine that computes it: requests, completions, and the decoder's protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from amc_agents.errors import ConfigurationError

Float32Array = npt.NDArray[np.float32]

MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one request is sampled."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_p: float = 1.0
    """Keeps the smallest set of tokens that holds this much probability."""
    max_tokens: int = 64
    """Tokens written at most, the end token included."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; they are not part of it."""
    n: int = 1
    """Candidates drawn from one prompt."""
    logprobs: bool = False
    """Report each token's natural log-probability under the model itself: temperature and top-p not applied."""
    top_logprobs: int = 0
    """Likeliest alternatives reported at each token."""

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled."""
        if not (np.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigurationError(f"temperature must be a finite number >= 0, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p must be in (0, 1], got {self.top_p}")
        for name in ("max_tokens", "n"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, got {getattr(self, name)}")
        if any(not text for text in self.stop):
            raise ConfigurationError("stop holds an empty text, which would end every answer at once; remove it")
        if not 0 <= self.top_logprobs <= MAX_TOP_LOGPROBS:
            raise ConfigurationError(f"top_logprobs must be in [0, {MAX_TOP_LOGPROBS}], got {self.top_logprobs}")
        if self.top_logprobs and not self.logprobs:
            raise ConfigurationError(f"top_logprobs={self.top_logprobs} needs logprobs=True")


class TokenLogprob(NamedTuple):
    """One written token and how likely it was."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token, log-probability) of the likeliest tokens, best first."""


TokenListener = Callable[[str, "TokenLogprob | None"], None]
"""Called on the worker's thread with each new piece of settled text."""


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and what to do with it."""

    prompt: tuple[int, ...]
    """Token ids."""
    sampling: Sampling
    seed: int
    """The request's own random stream: the answer does not depend on who shares the batch."""
    on_text: TokenListener | None = None
    """Hears the text of the only candidate as it grows."""


class Completion(NamedTuple):
    """One candidate."""

    text: str
    tokens: tuple[int, ...]
    """Everything written, the end token included."""
    finish_reason: str
    """"stop" (end token or stop text) or "length"."""
    logprobs: tuple[TokenLogprob, ...]
    """One per token, the end token included; empty unless asked for."""


class Answer(NamedTuple):
    """What a request brought."""

    completions: tuple[Completion, ...]
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that a cache answered."""


class Joined(NamedTuple):
    """What a decoder says about prompts that joined its batch."""

    logits: Float32Array
    """`[R, V]` of the token after the prompt of each new row."""
    cached: tuple[int, ...]
    """Tokens of each new row's prompt that were not computed again."""
    order: tuple[int, ...]
    """Which prompt each new row holds; of equal prompts, the first comes first."""


class Decoder(Protocol):
    """A batch of growing token sequences; used by one thread at a time."""

    @property
    def context(self) -> int:
        """Tokens that a sequence may have, prompt and answer together."""
        ...

    @property
    def end_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of written tokens, special tokens left out."""
        ...

    def join(self, prompts: Sequence[tuple[int, ...]]) -> Joined:
        """Read prompts into new rows, after those that are there."""
        ...

    def step(self, tokens: npt.NDArray[np.int64]) -> Float32Array:
        """Append one token to each of the B rows; `[B, V]` logits of the next."""
        ...

    def leave(self, row: int) -> None:
        """End a row; the last row takes its place."""
        ...

    def clear(self) -> None:
        """Forget every row, after a failure."""
        ...
