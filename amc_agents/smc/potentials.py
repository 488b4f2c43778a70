"""What a particle's number is: its potential, of the reward seen and the critic's prediction."""

from __future__ import annotations

import numpy as np

from amc_agents.types import FloatArray


def potentials(
    returns: FloatArray, predicted: FloatArray, beta: float, success_reward: float | None = None
) -> FloatArray:
    """The log-weight of each particle's state, before any resampling (AMC, eq. 4 and 6).

    A prediction that is a mean (eq. 7) stands for beta log E[exp(G / beta)] (eq. 5), of which it is the limit at
    large beta. Where the return can only be 0 or `success_reward`, the mean says all: p = prediction / success_reward
    is the probability of success, and eq. 5 is exactly

        log E[exp(G / beta)] = log(1 - p + p exp(success_reward / beta)).

    Small probabilities then weigh by their ratio: 0.05 against 0.01 is up to five to one at a small beta, where the
    mean alone, at beta = 0.1, makes it three to two.

    Args:
        returns: `[...]` R_t, the reward seen so far; zeros where none is observed.
        predicted: `[...]` the return still to come, 0 at an end; without rewards observed, the whole return.
        beta: temperature of the target, in reward units.
        success_reward: the one return besides 0, in reward units; None: any return may come.

    Returns:
        `[...]` phi_t.
    """
    if success_reward is None:
        return (returns + predicted) / beta
    probability = np.clip(predicted / success_reward, 0.0, 1.0)
    with np.errstate(divide="ignore"):  # log 0 = -inf is what we mean
        soft = np.logaddexp(np.log1p(-probability), np.log(probability) + success_reward / beta)
    found: FloatArray = returns / beta + soft
    return found
