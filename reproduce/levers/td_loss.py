"""Targets of TD(lambda), which the library does not have: they use the model's values of later states.

    y_t = r_{t+1} + (1 - lambda) v(s_{t+1}) + lambda y_{t+1}

v is the model's value of the next state in the same pass, without gradient. At the end of a trajectory the return is
known and v is not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from amc_agents.training.settings import Objective
from amc_agents.training.value import batches, trainer
from amc_agents.training.value.batches import collate
from amc_agents.training.value.one_pass import loss
from amc_agents.training.value.rows import TargetRow


@contextmanager
def td_loss(rate: float) -> Iterator[None]:
    """Train with targets of TD(lambda) and padded rows; the held-out loss keeps the returns."""
    with (
        mock.patch.object(batches, "collate", _with_ends),
        mock.patch.object(trainer, "value_loss", partial(_loss, rate=rate)),
    ):
        yield


def _with_ends(rows: Sequence[TargetRow], pad_id: int, *, packed: bool = False) -> dict[str, Tensor]:
    ends = torch.tensor([final for row in rows for final in row.final])
    return {**collate(rows, pad_id, packed=packed), "ends": ends}


def _loss(scores: Tensor, batch: Mapping[str, Tensor], objective: Objective, *, rate: float) -> Tensor:
    if "ends" not in batch:  # the held-out loss
        return loss(scores, batch, objective)
    return loss(scores, {**batch, "targets": td_targets(scores, batch, objective, rate)}, objective)


def td_targets(scores: Tensor, batch: Mapping[str, Tensor], objective: Objective, rate: float) -> Tensor:
    """Return the `[M]` targets: the return G plus a correction d, which is equal because G_t = r_{t+1} + G_{t+1}.

    d_t = (1 - lambda) (v(s_{t+1}) - G_{t+1}) + lambda d_{t+1}, and d = 0 if no mark of the row follows: the last state
    of a window that ends before its trajectory keeps its return.

    Args:
        scores: `[M]`.
        batch: `targets`, `mark_rows` and `ends`, each `[M]`, of padded rows.
        objective: the map from scores to values.
        rate: lambda.
    """
    returns = batch["targets"].to(scores)
    values = scores.detach().sigmoid() if objective.link == "sigmoid" else scores.detach()
    terms = ((1 - rate) * (values - returns).masked_fill(batch["ends"].to(scores.device), 0.0)).tolist()
    rows, corrections = batch["mark_rows"].tolist(), [0.0] * len(terms)
    for mark in reversed(range(len(terms) - 1)):
        if rows[mark] == rows[mark + 1]:
            corrections[mark] = terms[mark + 1] + rate * corrections[mark + 1]
    targets = returns + returns.new_tensor(corrections)
    return targets.clamp(0, 1) if objective.loss == "bce" else targets
