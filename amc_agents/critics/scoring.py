"""What value models that run in this process share: render, score each distinct prompt once, check, count."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.critics.checkpoint import ValueCheckpoint
from amc_agents.critics.render import Tokenize
from amc_agents.critics.validation import checked_values
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record

Prompt = Sequence[tuple[int, ...]]
"""Token ids of a prompt's segments."""


class Scores(NamedTuple):
    """What a model answered for some prompts."""

    scores: FloatArray
    """`[rows]` raw scores."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed again."""


class ScoringCritic(ABC):
    """A value model in this process. One batch at a time; the arithmetic runs in a thread.

    Args:
        name: what messages call it.
        checkpoint: its prompts, scale and golden scores; the latter are compared at the first use.
        tokenize: text of one segment -> token ids.
    """

    def __init__(self, name: str, checkpoint: ValueCheckpoint, tokenize: Tokenize) -> None:
        self.name, self.checkpoint = name, checkpoint
        self.usage = Usage()
        """All that it was asked so far: a run reports the difference."""
        self._tokenize = tokenize
        self._encoder = checkpoint.encoder(tokenize)
        self._checked = False
        self._lock = threading.Lock()

    @property
    def predicts(self) -> str:
        """What a value is: "future", the return still to come, or "return", the whole return."""
        return self.checkpoint.target

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions in reward units; equal prompts are scored once.

        Raises:
            CheckpointError: at the first use, where the golden scores are not reproduced.
            CriticError: a score is not finite, or a prompt cannot be made to fit.
        """
        return await asyncio.to_thread(self._values, tuple(trajectories))

    @abstractmethod
    def _score(self, prompts: Sequence[Prompt]) -> Scores:
        """Raw scores of distinct prompts, read at the last token of each."""

    def _values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        if not trajectories:
            return np.zeros(0)
        with self._lock:
            self._check()
            prompts = [tuple(self._encoder.newest(trajectory)) for trajectory in trajectories]
            distinct = {prompt: index for index, prompt in enumerate(dict.fromkeys(prompts))}
            answer = self._score(list(distinct))
            scores = checked_values(answer.scores, len(distinct), self.name)
            tokens = sum(len(segment) for prompt in distinct for segment in prompt)
            used = Usage(calls=len(distinct), input_tokens=tokens, cached_tokens=answer.cached_tokens)
            self.usage += used
            record("critic", used)
        return self.checkpoint.scale * scores[[distinct[prompt] for prompt in prompts]]

    def _check(self) -> None:
        if self._checked:
            return
        self.checkpoint.check(
            self._tokenize, lambda rows: self._score([(tuple(row),) for row in rows]).scores, f"critic {self.name}"
        )
        self._checked = True
