"""Load the batches of a value model's training: rows are collated into passes, one item per optimizer step and process.

Rows of a batch are padded on the right, where causal attention needs no mask and the kernel takes its fast path. Or
they are packed: concatenated into one row in which positions restart with each trajectory. Transformers' masks and
variable-length kernels then allow no attention between trajectories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amc_agents.errors import ConfigurationError, MissingExtra
from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.plan import Pass, StepPlan

try:
    import torch
    from torch import Tensor
    from torch.utils.data import DataLoader, Dataset, Sampler
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def collate(rows: Sequence[TargetRow], pad_id: int, *, packed: bool = False) -> dict[str, Tensor]:
    """Collate rows into the tensors of one pass: B rows (packed: 1) of S tokens, and M marks.

    Args:
        rows: at least one row.
        pad_id: fills up shorter rows. A mark must not be this token: a classifier pools the last token that is not
            padding.
        packed: concatenate the rows into a single row, restarting positions.

    Returns:
        input_ids `[B, S]`; position_ids `[1, S]`, packed only; and for the marks of all rows, in order: mark_rows,
        mark_columns `[M]` (their places), targets, weights, rewards `[M]` float32, follows `[M]` (index of the mark of
        the next state in the row, -1 for the last), ends `[M]` (whether the state is the end of its trajectory).

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
    for name in ("targets", "weights", "rewards"):
        batch[name] = torch.tensor([value for row in rows for value in getattr(row, name)], dtype=torch.float32)
    follows = torch.arange(1, sum(counts) + 1)
    follows[torch.tensor(counts).cumsum(0) - 1] = -1
    batch["follows"] = follows
    batch["ends"] = torch.tensor([final for row in rows for final in row.final])
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
