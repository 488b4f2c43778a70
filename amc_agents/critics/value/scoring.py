"""Base class of the value models that run in this process."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.critics.render import Batch, Prompt, Row
from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.validation import checked_values
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.spending import charge_in_thread
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record


class PromptScores(NamedTuple):
    """A model's answer to several prompts."""

    scores: FloatArray
    """`[prompts]` raw scores."""
    cached_tokens: int = 0
    """Prompt tokens that came from a cache."""


class ScoringCritic(ABC):
    """A value model in this process. It computes one batch at a time, in a thread.

    Args:
        name: the critic's name in messages.
        checkpoint: its prompt format, scale and golden scores, which the first use compares.
        tokenize: maps the text of a segment to token ids.
    """

    def __init__(self, name: str, checkpoint: ValueCheckpoint, tokenize: Tokenize) -> None:
        self.name, self.checkpoint = name, checkpoint
        self.usage = Usage()
        """Total usage so far; a run reports the difference."""
        self._tokenize = tokenize
        self._encoder = checkpoint.encoder(tokenize)
        self._checked = False
        self._lock = threading.RLock()

    @property
    def charged_as(self) -> str:
        """Name of the model under which a budget is charged."""
        return self.name

    @property
    def predicts(self) -> str:
        """The predicted quantity: "future", the return still to come, or "return", the whole return."""
        return self.checkpoint.target

    @property
    def beta(self) -> float | None:
        """The beta of an eq. 5 model, whose values hold for that beta alone; None for other models."""
        return self.checkpoint.beta

    async def connect(self) -> None:
        """Compare the golden scores, as the first `values` does, too. Raises `CheckpointError` if they differ."""
        await asyncio.to_thread(self._check)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions in reward units; equal prompts are scored once.

        Raises:
            CheckpointError: at the first use, if the golden scores differ.
            CriticError: a score is not finite, or a prompt exceeds the length limit.
        """
        return await asyncio.to_thread(self._values, tuple(trajectories))

    def state_values(self, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
        """`[T + 1]` values of all states of each trajectory, in one forward pass: equal to `values` of each prefix.

        For whole datasets, offline: the call blocks. Errors as in `values`.
        """
        if not trajectories:
            return []
        with self._lock:
            self._check()
            known: dict[Row, int] = {}
            windows = [
                [known.setdefault(row, len(known)) for row in self._encoder.rows(trajectory)]
                for trajectory in trajectories
            ]
            rows = list(known)
            ends = np.cumsum([len(row.marks) for row in rows])
            scores = checked_values(self._score_marks(rows), int(ends[-1]), self.name)
            self._count(Usage(calls=len(rows), input_tokens=sum(len(row.ids) for row in rows)))
        by_row = np.split(self.checkpoint.values(scores), ends[:-1])
        return [np.concatenate([by_row[index] for index in places]) for places in windows]

    @abstractmethod
    def _score(self, prompts: Sequence[Prompt]) -> PromptScores:
        """Raw scores of distinct prompts, read at their last tokens."""

    @abstractmethod
    def _score_marks(self, rows: Sequence[Row]) -> FloatArray:
        """Raw scores at the marks of all rows, in order; each row takes one forward pass."""

    def _values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        if not trajectories:
            return np.zeros(0)
        with self._lock:
            self._check()
            batch = Batch.of(self._encoder, trajectories)
            tokens = sum(len(segment) for prompt in batch.prompts for segment in prompt)
            charge_in_thread(self.name, Usage(calls=len(batch.prompts), input_tokens=tokens))
            answer = self._score(batch.prompts)
            scores = checked_values(answer.scores, len(batch.prompts), self.name)
            self._count(Usage(calls=len(batch.prompts), input_tokens=tokens, cached_tokens=answer.cached_tokens))
        return self.checkpoint.values(scores)[batch.rows]

    def _count(self, used: Usage) -> None:
        self.usage += used
        record("critic", used, self.name)

    def _check(self) -> None:
        with self._lock:
            if self._checked:
                return
            where = f"critic {self.name}"
            self.checkpoint.check_prompts(self._tokenize, where)
            rows = self.checkpoint.handshake_rows()
            self.checkpoint.check_scores(self._score([(row,) for row in rows]).scores, where)
            self._checked = True
