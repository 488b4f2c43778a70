"""The improved policy: pi_new(a) ~ prior(a) exp(alpha Q(a)) over the candidate actions (LAC, eq. 4 to 6).

`A` distinct candidate actions, `K` samples. The candidates are samples of the prior, so the prior must not be counted
twice: see the three priors.
"""

from __future__ import annotations

import math

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray, IntArray


def frequency_prior(counts: IntArray, greedy: int | None = None) -> FloatArray:
    """Return `[A]` log-probabilities n_a / K.

    Args:
        counts: `[A]` how often each action was sampled; 0 for an action of the greedy candidate alone.
        greedy: index of the greedy candidate's action; it adds a pseudo-count, (n_a + 1) / (K + 1).
    """
    votes = np.asarray(counts, dtype=np.float64).copy()
    if greedy is not None:
        votes[greedy] += 1.0
    with np.errstate(divide="ignore"):
        return np.log(votes) - math.log(votes.sum())


def likelihood_prior(log_likelihoods: FloatArray, owner: IntArray, n_actions: int) -> FloatArray:
    """Return `[A]` unnormalised log-probabilities of actions, each the sum over its distinct texts.

    Args:
        log_likelihoods: `[texts]` whole-string log-probability of each DISTINCT text, end token included.
        owner: `[texts]` index of the action that each text means.
        n_actions: A.
    """
    log_prior = np.full(n_actions, -np.inf)
    np.logaddexp.at(log_prior, owner, log_likelihoods)
    return log_prior


def mean_over_thoughts(log_likelihoods: FloatArray) -> FloatArray:
    """Return `[A]` log of the mean of pi(action | thought) over all K sampled thoughts.

    Args:
        log_likelihoods: `[K, A]` log pi(action a | thought k); a repeated thought has a row per sample.
    """
    total: FloatArray = np.logaddexp.reduce(log_likelihoods, axis=0)
    return total - math.log(len(log_likelihoods))


def improved(log_prior: FloatArray, q: FloatArray, alpha: float) -> FloatArray:
    """Return `[A]` probabilities ~ prior exp(alpha Q).

    alpha = 0 is the prior (a vote); alpha = infinity is the critic alone: the prior restricted to the highest Q.

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
    """Return the index of the most likely action, or of a random draw if `rng` is given.

    Ties are broken by the larger prior, then by the order of sampling.
    """
    if rng is not None:
        return int(rng.choice(len(probabilities), p=probabilities))
    # Probabilities that differ by rounding are tied.
    best = np.isclose(probabilities, probabilities.max(), rtol=1e-9, atol=0.0)
    return int(np.argmax(np.where(best, log_prior, -np.inf)))
