"""Plan which rows each optimizer step reads, in which forward passes, on which process, and load them as tensors.

The rows of a step follow from the seed and the epoch. Cutting them into passes changes the time and memory of the
step, but not its gradient: the mean over the marks of all rows of the step. A training therefore gives the same result
on any number of processes, and resumes at any step.

Rows of a pass are padded on the right, where causal attention needs no mask and the kernel takes its fast path. Or
they are packed: concatenated into one row in which positions restart with each trajectory. Transformers' masks and
variable-length kernels then allow no attention between trajectories.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.value.rows import TargetRow
from amc_agents.types import IntArray

try:
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset, Sampler
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def random_batches(rng: np.random.Generator, lengths: IntArray, size: int) -> Iterator[IntArray]:
    """Yield the indices of all rows once, in random batches of similar length; the last batches may be smaller.

    Transformers' `LengthGroupedSampler` sorts 50 batches at a time and yields the longest first, so that a small
    dataset would be read in the same order in every epoch.

    Args:
        rng: draws the order.
        lengths: `[n]` tokens of each row.
        size: rows of a batch.
    """
    order = rng.permutation(len(lengths))
    batches: list[IntArray] = []
    for start in range(0, len(order), _POOL * size):
        pool = order[start : start + _POOL * size]
        by_length = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [by_length[at : at + size] for at in range(0, len(by_length), size)]
    for index in rng.permutation(len(batches)):
        yield batches[index]


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
        """Yield the `[batch_size]` rows of each step, as `random_batches` draws them."""
        yield from random_batches(np.random.default_rng([self._seed, epoch]), self._lengths, self._batch_size)

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


def collate(rows: Sequence[TargetRow], pad_id: int, *, packed: bool = False) -> dict[str, Tensor]:
    """Collate rows into the tensors of one pass: B rows (packed: 1) of S tokens, and M marks.

    Args:
        rows: at least one row.
        pad_id: fills up shorter rows. A mark must not be this token: a classifier pools the last token that is not
            padding.
        packed: concatenate the rows into a single row, restarting positions.

    Returns:
        input_ids `[B, S]`; position_ids `[1, S]`, packed only; and for the marks of all rows, in order: mark_rows,
        mark_columns `[M]` (their places), targets and weights `[M]` float32.

    Raises:
        ConfigurationError: a mark is the padding token.
    """
    for row in rows:
        if any(row.ids[mark] == pad_id for mark in row.marks):
            raise ConfigurationError(
                f"a state's mark ends in token {pad_id}, which is the padding token: a sequence classifier would read "
                "the token before it. Choose another pad token for the tokenizer, or another marker for the prompt "
                "format"
            )
    counts = [len(row.marks) for row in rows]
    columns = [torch.tensor(row.marks) for row in rows]
    batch: dict[str, Tensor] = {}
    if packed:
        lengths = [len(row.ids) for row in rows]
        batch["input_ids"] = torch.tensor([[token for row in rows for token in row.ids]])
        batch["position_ids"] = torch.cat([torch.arange(length) for length in lengths])[None]
        starts = [sum(lengths[:index]) for index in range(len(rows))]
        batch["mark_rows"] = torch.zeros(sum(counts), dtype=torch.long)
        batch["mark_columns"] = torch.cat([start + column for start, column in zip(starts, columns, strict=True)])
    else:
        ids = torch.full((len(rows), max(len(row.ids) for row in rows)), pad_id)
        for index, row in enumerate(rows):
            ids[index, : len(row.ids)] = torch.tensor(row.ids)
        batch["input_ids"] = ids
        batch["mark_rows"] = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(counts))
        batch["mark_columns"] = torch.cat(columns)
    for name in ("targets", "weights"):
        batch[name] = torch.tensor([value for row in rows for value in getattr(row, name)], dtype=torch.float32)
    return batch


class PassDataset(Dataset[dict[str, Any]]):
    """Map a `Pass` to its tensors, its `share` and its `step_tokens`."""

    def __init__(self, rows: Sequence[TargetRow], pad_id: int, packed: bool) -> None:
        self._rows, self._pad_id, self._packed = rows, pad_id, packed

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, pass_: Pass) -> dict[str, Any]:
        batch = collate([self._rows[row] for row in pass_.rows], self._pad_id, packed=self._packed)
        return {**batch, "share": pass_.share, "step_tokens": pass_.step_tokens}


class StepSampler(Sampler[list[Pass]]):
    """Yield the passes of one process for each optimizer step of an epoch."""

    def __init__(self, plan: StepPlan, process: int, processes: int) -> None:
        self._plan, self._process, self._processes, self._epoch = plan, process, processes, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to iterate over."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._plan.steps_per_epoch

    def __iter__(self) -> Iterator[list[Pass]]:
        for rows in self._plan.steps(self._epoch):
            yield self._plan.passes(rows)[self._process :: self._processes]


class StepLoader(DataLoader[Any]):
    """A DataLoader over optimizer steps that passes the epoch on to its sampler, as Trainer expects."""

    def __init__(self, dataset: PassDataset, sampler: StepSampler, *, pin_memory: bool) -> None:
        # With a generator of its own it leaves torch's global random state alone.
        super().__init__(
            dataset, batch_sampler=sampler, collate_fn=list, generator=torch.Generator(), pin_memory=pin_memory
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to iterate over."""
        assert isinstance(self.batch_sampler, StepSampler)
        self.batch_sampler.set_epoch(epoch)
