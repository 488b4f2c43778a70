"""The batches of a value model's training, as torch loads data: one item per optimizer step and process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from amc_agents.errors import MissingExtra
from amc_agents.training.value.data import TargetRow
from amc_agents.training.value.one_pass import collate
from amc_agents.training.value.plan import Pass, Plan

try:
    from torch.utils.data import DataLoader, Dataset, Sampler
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


class Passes(Dataset[dict[str, Any]]):
    """Pass -> its tensors, and what to multiply the sum of its losses by."""

    def __init__(self, rows: Sequence[TargetRow], pad_id: int, packed: bool) -> None:
        self._rows, self._pad_id, self._packed = rows, pad_id, packed

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, one: Pass) -> dict[str, Any]:
        batch = collate([self._rows[row] for row in one.rows], self._pad_id, packed=self._packed)
        return {**batch, "share": one.share, "step_tokens": one.step_tokens}


class Steps(Sampler[list[Pass]]):
    """The passes of one process in each step of an epoch."""

    def __init__(self, plan: Plan, process: int, processes: int) -> None:
        self._plan, self._process, self._processes, self._epoch = plan, process, processes, 0

    def set_epoch(self, epoch: int) -> None:
        """Which epoch comes next."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._plan.steps_per_epoch

    def __iter__(self) -> Iterator[list[Pass]]:
        for rows in self._plan.steps(self._epoch):
            yield self._plan.passes(rows)[self._process :: self._processes]


class Loader(DataLoader[Any]):
    """A DataLoader that hands the epoch on to its sampler, as the Trainer expects."""

    def set_epoch(self, epoch: int) -> None:
        """Which epoch comes next."""
        assert isinstance(self.batch_sampler, Steps)
        self.batch_sampler.set_epoch(epoch)
