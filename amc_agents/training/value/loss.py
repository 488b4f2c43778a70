"""The losses of the value model, and the targets of TD(lambda).

`M` is the number of marks (scored states) of a batch. The states of a row are consecutive.
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
    """Return the sum of the losses of all marks, to be divided by the marks of the whole (global) batch.

    Args:
        scores: `[M]` float32 scores at the marks.
        batch: `targets`, `weights`, `follows`, `ends`, each `[M]` (`loader.collate`).
        objective: the loss, and lambda.

    Returns:
        A scalar. Its gradient is that of the scores; targets have no gradient.
    """
    targets = lambda_targets(scores, batch, objective)
    weights = batch["weights"].to(scores)
    if objective.loss == "bce":
        return functional.binary_cross_entropy_with_logits(scores, targets, weight=weights, reduction="sum")
    return (weights * (scores - targets) ** 2).sum()


def lambda_targets(scores: Tensor, batch: Mapping[str, Tensor], objective: Objective) -> Tensor:
    """Return the `[M]` lambda-returns of all marks: y_t = r_{t+1} + (1 - lambda) v(s_{t+1}) + lambda y_{t+1}.

    v is the model's value of the next state in the same pass, without gradient. At the end of a trajectory the return
    is known and v is not used. The lambda-return is computed as the Monte-Carlo target G plus a correction d,

        d_t = (1 - lambda) (v(s_{t+1}) - G_{t+1}) + lambda d_{t+1},    d = 0 if no mark follows,

    which is equal because G_t = r_{t+1} + G_{t+1}. At lambda = 1 it is therefore exactly G. The last state of a window
    that ends before its trajectory keeps its Monte-Carlo return. Targets of the whole return need no special case. With
    binary cross-entropy the result is clamped to [0, 1], the range of the expected return.

    Args:
        scores: `[M]`.
        batch: `targets` `[M]`; `follows` `[M]` index of the next state's mark, -1 for the last of a row; `ends` `[M]`
            whether the mark is the end of a trajectory.
        objective: lambda, and the map from scores to values.
    """
    targets = batch["targets"].to(scores)
    if objective.td_lambda == 1:
        return targets
    values = scores.detach().sigmoid() if objective.link == "sigmoid" else scores.detach()
    returns = targets + _discounted_sum(
        (1 - objective.td_lambda) * (values - targets).masked_fill(batch["ends"].to(scores.device), 0.0),
        batch["follows"].to(scores.device),
        objective.td_lambda,
    )
    return returns.clamp(0, 1) if objective.loss == "bce" else returns


def _discounted_sum(terms: Tensor, follows: Tensor, rate: float) -> Tensor:
    """Return d_t = terms[t + 1] + rate x d_{t + 1} along each chain of marks.

    After k rounds, `sums` holds the first 2^k terms of each chain: log2(M) rounds instead of a loop over states,
    without a transfer from the device.
    """
    marks = len(terms)
    past_the_end = torch.full_like(follows[:1], marks)
    step = torch.cat([torch.where(follows < 0, past_the_end, follows), past_the_end])
    zero = terms.new_zeros(1)
    sums = torch.cat([terms, zero])[step]
    factor = rate * (step < marks).to(terms.dtype)
    for _ in range(marks.bit_length()):
        sums = sums + factor * sums[step]
        factor = factor * factor[step]
        step = step[step]
    return sums[:-1]
