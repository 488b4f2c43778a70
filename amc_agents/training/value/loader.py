"""Load the batches of a value model's training: one item per optimizer step and process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amc_agents.errors import MissingExtra
from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.one_pass import collate
from amc_agents.training.value.plan import Pass, StepPlan

try:
    import torch
    from torch.utils.data import DataLoader, Dataset, Sampler
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


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
