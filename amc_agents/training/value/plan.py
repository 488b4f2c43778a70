"""Which rows each optimizer step of a value model reads, in which forward passes, on which process.

The rows of a step follow from the seed and the epoch alone. How they are cut into passes decides the time and the
memory that the step takes, and not its gradient, which is the mean over the marks of all of the step's rows: the same
training therefore runs on any number of processes, and goes on after a kill from any step.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from amc_agents.types import IntArray


class Pass(NamedTuple):
    """One forward and backward pass of one process."""

    rows: tuple[int, ...]
    """Numbers of its rows."""
    share: float
    """What the sum of its losses is multiplied by: 1 / (marks of the whole step), or 0 in a pass that only keeps a
    process in step with the others."""
    step_tokens: int
    """Tokens of the whole step's rows, without padding."""


class Plan:
    """The steps of every epoch."""

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
        """A plan for one training.

        Args:
            lengths: `[n]` tokens of each row.
            marks: `[n]` marks of each row.
            batch_size: rows of a step, over all processes; the last step of an epoch may have fewer.
            max_tokens: the most tokens of a pass, padding included; a longer row is a pass of its own. None: each
                process reads its share of a step in one pass.
            packed: rows stand one after the other, without padding.
            processes: how many share a step.
            seed: of the order of rows.
        """
        self._lengths, self._marks = np.asarray(lengths), np.asarray(marks)
        self._batch_size, self._max_tokens, self._packed = batch_size, max_tokens, packed
        self._processes, self._seed = processes, seed

    @property
    def steps_per_epoch(self) -> int:
        """The same in every epoch."""
        return -(-len(self._lengths) // self._batch_size)

    def steps(self, epoch: int) -> Iterator[IntArray]:
        """`[batch_size]` rows of each step: all rows once, in random batches of like length (little padding)."""
        rng = np.random.default_rng([self._seed, epoch])
        order = rng.permutation(len(self._lengths))
        size = self._batch_size
        found: list[IntArray] = []
        for start in range(0, len(order), _POOL * size):
            pool = order[start : start + _POOL * size]
            by_length = pool[np.argsort(self._lengths[pool], kind="stable")]
            found += [by_length[at : at + size] for at in range(0, len(by_length), size)]
        for index in rng.permutation(len(found)):
            yield found[index]

    def passes(self, rows: IntArray) -> list[Pass]:
        """The passes of one step, as many for each process: the k-th round is `passes[k * processes:][:processes]`.

        The passes of a round are of about the same size, as the processes wait for each other.
        """
        tokens = int(self._lengths[rows].sum())
        share = 1 / int(self._marks[rows].sum())
        parts = self._parts(rows)
        found = [Pass(tuple(map(int, part)), share, tokens) for part in parts]
        # The shortest row, with weight 0: under sharding every process must take part in every pass.
        idle = Pass((int(rows[np.argmin(self._lengths[rows])]),), 0.0, tokens)
        return found + [idle] * (-len(found) % self._processes)

    def rounds(self, rows: Sequence[int] | IntArray) -> list[list[Pass]]:
        """All given rows once, for scoring: by length, `batch_size` rows or `max_tokens` at most a pass.

        Returns:
            For each process its passes, as many for each; those of share 0 are to be ignored.
        """
        order = np.asarray(rows)[np.argsort(self._lengths[np.asarray(rows)], kind="stable")]
        found: list[Pass] = []
        for start in range(0, len(order), self._batch_size):
            chunk = order[start : start + self._batch_size]
            found += [Pass(tuple(map(int, part)), 1.0, 0) for part in self._parts(chunk, processes=1)]
        found += [Pass((int(order[0]),), 0.0, 0)] * (-len(found) % self._processes)
        return [found[process :: self._processes] for process in range(self._processes)]

    def _parts(self, rows: IntArray, processes: int | None = None) -> list[list[int]]:
        """The rows in as few parts as the limit allows, a multiple of the processes unless the rows run out."""
        processes = processes or self._processes
        if processes == 1 and self._max_tokens is None:
            return [list(rows)]
        longest_first = rows[np.argsort(-self._lengths[rows], kind="stable")]
        return (self._bins if self._packed else self._slices)(longest_first, processes)

    def _slices(self, rows: IntArray, processes: int) -> list[list[int]]:
        """Padded: consecutive rows by length. Of all cuts into so many parts, one whose largest part is smallest."""
        lengths = [int(one) for one in self._lengths[rows]]
        limit = len(rows) * lengths[0] if self._max_tokens is None else self._max_tokens
        count = min(len(rows), processes * -(-len(_cut(lengths, limit)) // processes))
        smallest = bisect_left(range(limit), True, key=lambda budget: len(_cut(lengths, budget)) <= count)
        ends = _cut(lengths, smallest)
        # A smaller limit would need more parts than there are; the last parts may still be halved.
        while len(ends) < count:
            bounds = [0, *ends]
            widest = max(range(len(ends)), key=lambda part: bounds[part + 1] - bounds[part])
            ends.insert(widest, (bounds[widest] + bounds[widest + 1]) // 2)
        return [list(rows[start:end]) for start, end in zip([0, *ends], ends, strict=False)]

    def _bins(self, rows: IntArray, processes: int) -> list[list[int]]:
        """Packed: each row, longest first, goes where there is least; as few bins as hold them all."""
        total = int(self._lengths[rows].sum())
        count = processes if self._max_tokens is None else processes * -(-total // (self._max_tokens * processes))
        while True:
            count = min(count, len(rows))
            bins: list[list[int]] = [[] for _ in range(count)]
            sizes = [0] * count
            for row in rows:
                least = min(range(count), key=sizes.__getitem__)
                bins[least].append(int(row))
                sizes[least] += int(self._lengths[row])
            crowded = any(
                size > (self._max_tokens or size) and len(bin_) > 1 for size, bin_ in zip(sizes, bins, strict=True)
            )
            if not crowded or count == len(rows):
                return bins
            count += processes


def _cut(lengths: Sequence[int], budget: int) -> list[int]:
    """Ends of consecutive parts of rows, longest first, each of at most `budget` padded tokens or of one row."""
    ends, start = [], 0
    while start < len(lengths):
        start = min(len(lengths), start + max(1, budget // max(1, lengths[start])))
        ends.append(start)
    return ends


_POOL = 8
"""Batches drawn at once and cut by length."""
