"""The value model's losses, and the targets of TD(lambda) that they are taken to.

Letters: `M` marks (scored states) of a batch, in which the states of a row follow each other.
"""

from __future__ import annotations

from collections.abc import Mapping

from amc_agents.errors import MissingExtra
from amc_agents.training.value.objective import Objective

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ImportError as error:
    raise MissingExtra(error.name or "torch", "train") from error


def loss(scores: Tensor, batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    """The sum of the losses of all marks; divide by the number of marks of the whole (global) batch.

    Args:
        scores: `[M]` float32 scores at the marks.
        batch: `targets`, `weights`, `follows`, `ends`, each `[M]` (`one_pass.collate`).
        objective: which loss, and lambda.

    Returns:
        A scalar, with the gradient of the scores; targets have none.
    """
    targets = lambda_targets(scores, batch, objective)
    weights = batch["weights"].to(scores)
    if objective.loss == "bce":
        return functional.binary_cross_entropy_with_logits(scores, targets, weight=weights, reduction="sum")
    return (weights * (scores - targets) ** 2).sum()


def lambda_targets(scores: Tensor, batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    """`[M]` the lambda-return of every mark: y_t = r_{t+1} + (1 - lambda) v(s_{t+1}) + lambda y_{t+1}.

    v is the model's own value of the next state in this same pass, without gradient; at a trajectory's end the return
    is known and v is not asked. It is computed as the Monte-Carlo target G plus a correction d,

        d_t = (1 - lambda) (v(s_{t+1}) - G_{t+1}) + lambda d_{t+1},    d = 0 where no mark follows,

    which is the same, as G_t = r_{t+1} + G_{t+1}. So at lambda = 1 it is G to the last bit; the last state of a window
    that ends before its trajectory keeps its Monte-Carlo return; and targets of the whole return need no other rule.
    With binary cross-entropy it is kept within [0, 1], where the expected return lies.

    Args:
        scores: `[M]`.
        batch: `targets` `[M]`; `follows` `[M]` index of the next state's mark, -1 where the row has none; `ends` `[M]`
            whether the mark is a trajectory's end.
        objective: lambda, and how scores become values.
    """
    targets = batch["targets"].to(scores)
    if objective.td_lambda == 1:
        return targets
    values = scores.detach().sigmoid() if objective.link == "sigmoid" else scores.detach()
    found = targets + _discounted_sum(
        (1 - objective.td_lambda) * (values - targets).masked_fill(batch["ends"].to(scores.device), 0.0),
        batch["follows"].to(scores.device),
        objective.td_lambda,
    )
    return found.clamp(0, 1) if objective.loss == "bce" else found


def _discounted_sum(terms: Tensor, follows: Tensor, rate: float) -> Tensor:
    # d_t = terms[t + 1] + rate x d_{t + 1} along each chain. After k rounds `found` holds the first 2^k terms of each:
    # log2(M) rounds in place of a loop over states, and nothing is read back from the device.
    marks = len(terms)
    past_the_end = torch.full_like(follows[:1], marks)
    step = torch.cat([torch.where(follows < 0, past_the_end, follows), past_the_end])
    zero = terms.new_zeros(1)
    found = torch.cat([terms, zero])[step]
    factor = rate * (step < marks).to(terms.dtype)
    for _ in range(marks.bit_length()):
        found = found + factor * found[step]
        factor = factor * factor[step]
        step = step[step]
    return found[:-1]
