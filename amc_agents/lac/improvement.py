"""The improved policy: pi_new(a) ~ prior(a) exp(alpha Q(a)) over the candidate actions (LAC, eq. 4 to 6).

`A` distinct candidate actions, `K` samples. The candidates are samples of the prior, so the prior must not be counted
twice: see the three priors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.decisions import Sample
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.lac.types import Prior, Rescorer
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


class Opinion(NamedTuple):
    """The prior over `A` candidates."""

    name: str
    """Name of the prior: an entry of `PRIORS`, or "list"."""
    log_prior: FloatArray
    """`[A]` unnormalised log-probabilities."""
    rescored: bool
    """True if the policy was called again, to score texts."""


async def sampled_opinion(
    prior: Prior, merged: Mapping[str, Sequence[Sample]], greedy: Sample | None, rescorer: Rescorer | None
) -> Opinion:
    """Compute the prior over sampled actions.

    Args:
        prior: name of the prior.
        merged: action -> its samples, the greedy turn included.
        greedy: the turn at temperature 0; it was not sampled, and adds a pseudo-count.
        rescorer: scores texts.

    Raises:
        ConfigurationError: log-likelihoods are needed and nothing provides them, or samples have thoughts under the
            prior "likelihood".
        CriticError: the rescorer's answer is not a table of log-likelihoods.
    """
    actions = list(merged)
    if prior == "frequency":
        counts = np.array([sum(sample is not greedy for sample in group) for group in merged.values()])
        forced = None if greedy is None else actions.index(greedy.action)
        return Opinion(prior, frequency_prior(counts, forced), rescored=False)
    samples = [sample for group in merged.values() for sample in group]
    if prior == "thoughts":
        if rescorer is None:
            raise ConfigurationError('prior="thoughts" scores every action under every thought: it needs a rescorer')
        # The greedy thought was not sampled: it counts only if no sample is left.
        sampled = [sample for sample in samples if sample is not greedy] or samples
        thoughts = [sample.thought for sample in sampled]
        return Opinion(prior, await over_thoughts(thoughts, actions, rescorer), rescored=True)
    return await _likelihood(samples, actions, rescorer)


async def listed_opinion(thoughts: Sequence[str], actions: Sequence[str], rescorer: Rescorer) -> Opinion:
    """Compute the exact prior over all actions that the world lists. Raises as `sampled_opinion`."""
    return Opinion("list", await over_thoughts(thoughts, actions, rescorer), rescored=True)


async def over_thoughts(thoughts: Sequence[str], actions: Sequence[str], rescorer: Rescorer) -> FloatArray:
    """Return `[A]` log of the mean of pi(action | thought) over the thoughts; equal thoughts are scored once.

    Raises:
        CriticError: the rescorer's answer is not a table of log-likelihoods.
    """
    distinct = list(dict.fromkeys(thoughts))
    table = _checked(await rescorer.log_likelihoods(distinct, actions), (len(distinct), len(actions)))
    return mean_over_thoughts(table[[distinct.index(thought) for thought in thoughts]])


async def _likelihood(samples: Sequence[Sample], actions: Sequence[str], rescorer: Rescorer | None) -> Opinion:
    if any(sample.thought for sample in samples):
        raise ConfigurationError(
            'prior="likelihood" scores texts without a thought, and these samples have thoughts: use '
            'prior="thoughts", or "frequency"'
        )
    texts: dict[str, Sample] = {}
    for sample in samples:
        text = sample.text or sample.action
        if text not in texts or texts[text].log_likelihood is None:
            texts[text] = sample
    known = [sample.log_likelihood for sample in texts.values() if sample.log_likelihood is not None]
    if len(known) == len(texts):
        owner = np.array([actions.index(sample.action) for sample in texts.values()])
        log_prior = likelihood_prior(_checked(known, (len(known),)), owner, len(actions))
        return Opinion("likelihood", log_prior, rescored=False)
    if rescorer is None:
        raise ConfigurationError(
            'prior="likelihood" needs the samples\' log-likelihoods at the sampling temperature, or a rescorer'
        )
    return Opinion("likelihood", await over_thoughts([""], actions, rescorer), rescored=True)


def _checked(values: Any, shape: tuple[int, ...]) -> FloatArray:
    table = np.asarray(values, dtype=np.float64)
    if table.shape != shape:
        raise CriticError(f"expected log-likelihoods of shape {list(shape)}, got {list(table.shape)}")
    # Values slightly above 0 are rounding errors.
    if np.isnan(table).any() or (table > 1e-3).any():
        raise CriticError(f"expected log-likelihoods, at most 0 each, got {np.round(table, 4).tolist()}")
    return table
