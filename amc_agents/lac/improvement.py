"""The improved policy: pi_new(a) ~ prior(a) exp(alpha Q(a)) over the candidate actions (LAC, eq. 4 to 6).

`A` distinct candidate actions, `K` samples. The candidates are themselves samples of the prior, so it must not be
counted twice: see the three priors.
"""

from __future__ import annotations

import math

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray, IntArray


def frequency_prior(counts: IntArray, greedy: int | None = None) -> FloatArray:
    """`[A]` log-probabilities n_a / K.

    Args:
        counts: `[A]` how often each action was sampled; 0 for one that only the greedy candidate brought.
        greedy: the action of a candidate that was forced in; it adds one pseudo-count, (n_a + 1) / (K + 1).
    """
    found = np.asarray(counts, dtype=np.float64).copy()
    if greedy is not None:
        found[greedy] += 1.0
    with np.errstate(divide="ignore"):
        return np.log(found) - math.log(found.sum())


def likelihood_prior(log_likelihoods: FloatArray, owner: IntArray, n_actions: int) -> FloatArray:
    """`[A]` log-probabilities of actions as the sum over their distinct texts, not normalised.

    Args:
        log_likelihoods: `[texts]` whole-string log-probability of each DISTINCT text, end token included.
        owner: `[texts]` the action that each text means.
        n_actions: A.
    """
    found = np.full(n_actions, -np.inf)
    np.logaddexp.at(found, owner, log_likelihoods)
    return found


def mean_over_thoughts(log_likelihoods: FloatArray) -> FloatArray:
    """`[A]` log of the mean over all K sampled thoughts of pi(action | thought).

    Args:
        log_likelihoods: `[K, A]` log pi(action a | thought k), repeated thoughts as often as they were sampled.
    """
    total: FloatArray = np.logaddexp.reduce(log_likelihoods, axis=0)
    return total - math.log(len(log_likelihoods))


def improved(log_prior: FloatArray, q: FloatArray, alpha: float) -> FloatArray:
    """`[A]` probabilities ~ prior exp(alpha Q).

    alpha = 0 is the prior (a vote); alpha = infinity is the critic alone: the prior among the actions of highest Q.

    Raises:
        ConfigurationError: alpha is negative or not a number.
    """
    if not alpha >= 0:
        raise ConfigurationError(f"alpha must be at least 0, got {alpha}")
    possible = np.isfinite(log_prior)
    if math.isinf(alpha):
        best = np.max(q[possible])
        log_weights = np.where(possible & (q == best), log_prior, -np.inf)
    else:
        log_weights = log_prior + alpha * np.where(possible, q, 0.0)
    weights = np.exp(log_weights - np.max(log_weights))
    probabilities: FloatArray = weights / weights.sum()
    return probabilities


def choose(probabilities: FloatArray, log_prior: FloatArray, rng: np.random.Generator | None = None) -> int:
    """The index of the chosen action: the likeliest, or one draw where `rng` is given.

    A tie goes to the larger prior, then to the action that was sampled first.
    """
    if rng is not None:
        return int(rng.choice(len(probabilities), p=probabilities))
    # Equal up to rounding is a tie.
    best = np.isclose(probabilities, probabilities.max(), rtol=1e-9, atol=0.0)
    return int(np.argmax(np.where(best, log_prior, -np.inf)))
