"""What value models share: each distinct prompt is scored once; and those that run in this process, whole."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.critics.render import Encoder, Row
from amc_agents.critics.tokenizing import Tokenize
from amc_agents.critics.validation import checked_values
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.types import FloatArray, Trajectory
from amc_agents.usage import Usage, record

Prompt = tuple[tuple[int, ...], ...]
"""Token ids of a prompt's segments."""


class Batch(NamedTuple):
    """The prompts of some trajectories, equal ones once: after a resampling many are."""

    prompts: list[Prompt]
    """Distinct ones, in the order of their first trajectory."""
    rows: list[int]
    """`[N]` index in `prompts` of each trajectory's."""

    @classmethod
    def of(cls, encoder: Encoder, trajectories: Sequence[Trajectory]) -> Batch:
        """The prompts of the trajectories' newest states. Raises `CriticError` where one cannot be made to fit."""
        rows: dict[Prompt, int] = {}
        # A particle's copies are one object, and need not be rendered to be seen to be equal.
        known: dict[int, int] = {}
        for trajectory in trajectories:
            if id(trajectory) not in known:
                known[id(trajectory)] = rows.setdefault(tuple(encoder.newest(trajectory)), len(rows))
        return cls(list(rows), [known[id(trajectory)] for trajectory in trajectories])


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

    @property
    def beta(self) -> float | None:
        """The beta of an eq. 5 model, which holds for that beta alone; None for any other."""
        return self.checkpoint.beta

    async def connect(self) -> None:
        """Compare the golden scores; done by the first `values`, too. Raises `CheckpointError` where they differ."""
        await asyncio.to_thread(self._check_alone)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predictions in reward units; equal prompts are scored once.

        Raises:
            CheckpointError: at the first use, where the golden scores are not reproduced.
            CriticError: a score is not finite, or a prompt cannot be made to fit.
        """
        return await asyncio.to_thread(self._values, tuple(trajectories))

    def state_values(self, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
        """`[T + 1]` values of all states of each trajectory: what `values` says of each prefix, read in one pass.

        For whole datasets, offline; it returns when all is computed. Errors as in `values`.
        """
        if not trajectories:
            return []
        with self._lock:
            self._check()
            known: dict[Row, int] = {}
            windows = [[known.setdefault(row, len(known)) for row in self._encoder.rows(one)] for one in trajectories]
            rows = list(known)
            ends = np.cumsum([len(row.marks) for row in rows])
            scores = checked_values(self._score_marks(rows), int(ends[-1]), self.name)
            used = Usage(calls=len(rows), input_tokens=sum(len(row.ids) for row in rows))
            self.usage += used
            record("critic", used, self.name)
        by_row = np.split(self.checkpoint.values(scores), ends[:-1])
        return [np.concatenate([by_row[index] for index in places]) for places in windows]

    @abstractmethod
    def _score(self, prompts: Sequence[Prompt]) -> Scores:
        """Raw scores of distinct prompts, read at the last token of each."""

    @abstractmethod
    def _score_marks(self, rows: Sequence[Row]) -> FloatArray:
        """Raw scores at the marks of all rows, row after row; each row is read once."""

    def _values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        if not trajectories:
            return np.zeros(0)
        with self._lock:
            self._check()
            batch = Batch.of(self._encoder, trajectories)
            answer = self._score(batch.prompts)
            scores = checked_values(answer.scores, len(batch.prompts), self.name)
            tokens = sum(len(segment) for prompt in batch.prompts for segment in prompt)
            used = Usage(calls=len(batch.prompts), input_tokens=tokens, cached_tokens=answer.cached_tokens)
            self.usage += used
            record("critic", used, self.name)
        return self.checkpoint.values(scores)[batch.rows]

    def _check_alone(self) -> None:
        with self._lock:
            self._check()

    def _check(self) -> None:
        if self._checked:
            return
        where = f"critic {self.name}"
        self.checkpoint.check_prompts(self._tokenize, where)
        rows = self.checkpoint.handshake_rows()
        self.checkpoint.check_scores(self._score([(row,) for row in rows]).scores, where)
        self._checked = True
