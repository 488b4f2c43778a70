"""Plan which rows each optimizer step reads, in which forward passes, and on which process.

The rows of a step follow from the seed and the epoch. Cutting them into passes changes the time and memory of the
step, but not its gradient: the mean over the marks of all rows of the step. A training therefore gives the same result
on any number of processes, and resumes at any step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from amc_agents.types import IntArray


class Pass(NamedTuple):
    """One forward and backward pass on one process."""

    rows: tuple[int, ...]
    """Indices of its rows."""
    share: float
    """Factor of the sum of its losses: 1 / (marks of the whole step). 0 for an idle pass, which only keeps a process in
    step with the others."""
    step_tokens: int
    """Tokens of all rows of the step, without padding."""


class StepPlan:
    """The optimizer steps of every epoch."""

    def __init__(
        self,
        lengths: Sequence[int] | IntArray,
        marks: Sequence[int] | IntArray,
        *,
        batch_size: int,
        max_tokens: int | None = None,
        packed: bool = False,
        processes: int = 1,
        seed: int = 0,
    ) -> None:
        """Plan a training.

        Args:
            lengths: `[n]` tokens of each row.
            marks: `[n]` marks of each row.
            batch_size: rows per step over all processes; the last step of an epoch may have fewer.
            max_tokens: limit for the tokens of a pass, padding included. A longer row gets a pass of its own. None:
                each process reads its share of a step in one pass.
            packed: rows are concatenated without padding.
            processes: number of processes that share a step.
            seed: for the order of rows.
        """
        self._lengths, self._marks = np.asarray(lengths), np.asarray(marks)
        self._batch_size, self._max_tokens, self._packed = batch_size, max_tokens, packed
        self._processes, self._seed = processes, seed

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps, the same in every epoch."""
        return -(-len(self._lengths) // self._batch_size)

    def steps(self, epoch: int) -> Iterator[IntArray]:
        """Yield the `[batch_size]` rows of each step: every row once, in random batches of similar length.

        Transformers' `LengthGroupedSampler` sorts 50 batches at a time and yields the longest first, so that a small
        dataset would be read in the same order in every epoch.
        """
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(self._lengths))
        size = self._batch_size
        batches: list[IntArray] = []
        for start in range(0, len(order), _POOL * size):
            pool = order[start : start + _POOL * size]
            by_length = pool[np.argsort(self._lengths[pool], kind="stable")]
            batches += [by_length[at : at + size] for at in range(0, len(by_length), size)]
        for index in rng.permutation(len(batches)):
            yield batches[index]

    def passes(self, rows: IntArray) -> list[Pass]:
        """Cut a step into passes, the same number for each process: process k takes `passes[k::processes]`.

        Consecutive passes are of similar size, because the processes wait for each other.
        """
        rows = rows[np.argsort(-self._lengths[rows], kind="stable")]
        tokens, share = int(self._lengths[rows].sum()), 1 / int(self._marks[rows].sum())
        ends = self._ends(self._lengths[rows].tolist())
        passes = [Pass(tuple(rows[start:end].tolist()), share, tokens) for start, end in pairwise([0, *ends])]
        idle = Pass((int(rows[-1]),), 0.0, tokens)
        return passes + [idle] * (-len(passes) % self._processes)

    def _ends(self, lengths: Sequence[int]) -> list[int]:
        """Return where each pass ends: as few passes as the limit allows, the largest of them as small as possible."""
        limit = self._max_tokens or self._size(lengths)
        least = len(self._cut(lengths, limit))
        allowed = self._processes * -(-least // self._processes)
        smallest = bisect_left(range(limit), True, key=lambda size: len(self._cut(lengths, size)) <= allowed)
        return self._cut(lengths, smallest)

    def _cut(self, lengths: Sequence[int], limit: int) -> list[int]:
        """Return the ends of consecutive passes (longest row first), each of one row or of at most `limit` tokens."""
        sums = [0, *accumulate(lengths)]
        ends, start = [], 0
        for end in range(1, len(lengths) + 1):
            size = sums[end] - sums[start] if self._packed else (end - start) * lengths[start]
            if size > limit and end > start + 1:
                ends.append(end - 1)
                start = end - 1
        return [*ends, len(lengths)]

    def _size(self, lengths: Sequence[int]) -> int:
        """Return the tokens of all rows in one pass, padding included."""
        return sum(lengths) if self._packed else len(lengths) * lengths[0]


_POOL = 8
"""Batches drawn at once and cut by length."""
