"""The potential of a particle, from the rewards seen and the critic's prediction."""

from __future__ import annotations

import numpy as np

from amc_agents.types import FloatArray


def potentials(
    returns: FloatArray, predicted: FloatArray, beta: float, success_reward: float | None = None
) -> FloatArray:
    """The log-weight of each particle's state, before any resampling (AMC, eq. 4 and 6).

    A predicted mean (eq. 7) approximates beta log E[exp(G / beta)] (eq. 5), with equality in the limit of large beta.
    If the return is either 0 or `success_reward`, the mean determines eq. 5: p = prediction / success_reward is the
    probability of success, and

        log E[exp(G / beta)] = log(1 - p + p exp(success_reward / beta)).

    Small probabilities then count by their ratio: at a small beta, 0.05 outweighs 0.01 by almost five to one, whereas
    the mean alone, at beta = 0.1, gives three to two.

    Args:
        returns: `[...]` R_t, the return so far; 0 in a run without rewards.
        predicted: `[...]` the predicted future return, 0 at an end; in a run without rewards, the whole return.
        beta: scale of the target pi exp(R / beta), in reward units.
        success_reward: the return of a success if every other return is 0, in reward units; None: returns are
            arbitrary.

    Returns:
        `[...]` phi_t.
    """
    if success_reward is None:
        return (returns + predicted) / beta
    probability = np.clip(predicted / success_reward, 0.0, 1.0)
    with np.errstate(divide="ignore"):  # log 0 = -inf is intended
        soft = np.logaddexp(np.log1p(-probability), np.log(probability) + success_reward / beta)
    phi: FloatArray = returns / beta + soft
    return phi
