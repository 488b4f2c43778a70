"""A training loss that ranks the states of a task at the same step, which the library does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from amc_agents.training.settings import Objective
from amc_agents.training.value import trainer
from amc_agents.training.value.batches import StepPlan
from amc_agents.training.value.one_pass import loss
from amc_agents.types import IntArray

RUNS = 8
"""Runs of a task, which are consecutive in the data."""


@contextmanager
def ranking_loss() -> Iterator[None]:
    """Train with whole tasks in a batch, and the pairwise loss added to the usual one."""
    with mock.patch.object(trainer, "value_loss", _loss), mock.patch.object(trainer, "StepPlan", _WholeTasks):
        yield


class _WholeTasks(StepPlan):
    def steps(self, epoch: int) -> Iterator[IntArray]:
        """Yield batches of all runs of some tasks."""
        rng = np.random.default_rng([self._seed, epoch])
        tasks = np.arange(len(self._lengths)).reshape(-1, RUNS)[rng.permutation(len(self._lengths) // RUNS)]
        yield from tasks.reshape(-1, self._batch_size) if tasks.size % self._batch_size == 0 else tasks


def _loss(scores: Tensor, batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    usual = loss(scores, batch, objective)
    if "mark_rows" not in batch:  # the held-out loss
        return usual
    return usual + len(scores) * pairwise(scores, batch)


def pairwise(scores: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean logistic loss over pairs of states of a task at the same step, of which one led to success.

    Args:
        scores: `[M]` scores at the marks.
        batch: of `collate`, not packed.
    """
    rows, targets = batch["mark_rows"], batch["targets"].to(scores)
    first = torch.cat([rows.new_ones(1, dtype=torch.bool), rows[1:] != rows[:-1]])
    # All runs of a task begin with the same prompt.
    prompts = [
        tuple(batch["input_ids"][row, : column + 1].tolist())
        for row, column in zip(rows[first].tolist(), batch["mark_columns"][first].tolist(), strict=True)
    ]
    task = torch.tensor([prompts.index(prompt) for prompt in prompts])[rows]
    starts = torch.nonzero(first).flatten()
    step = torch.arange(len(rows)) - starts[rows]
    alike = (task[:, None] == task) & (step[:, None] == step)
    better = alike & (targets[:, None] > targets)
    if not better.any():
        return scores.sum() * 0.0
    return functional.softplus(-(scores[:, None] - scores))[better].mean()
