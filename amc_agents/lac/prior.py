"""The policy's own opinion of the candidates: which of the priors is asked for, and what has to be scored for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.decisions.samples import Sample
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.lac.improvement import frequency_prior, likelihood_prior, mean_over_thoughts
from amc_agents.lac.types import Prior, Rescorer
from amc_agents.types import FloatArray


class Opinion(NamedTuple):
    """What the policy thinks of the candidates."""

    name: str
    """The prior that it is: one of `PRIORS`, or "list"."""
    log_prior: FloatArray
    """`[A]` not normalised."""
    rescored: bool
    """The policy was asked once more, to score texts."""


async def sampled_opinion(
    prior: Prior, merged: Mapping[str, Sequence[Sample]], greedy: Sample | None, rescorer: Rescorer | None
) -> Opinion:
    """The prior over actions that were sampled.

    Args:
        prior: which one.
        merged: action -> all samples of it, the greedy one included.
        greedy: the candidate that was forced in; it was not sampled, and counts as one pseudo-count.
        rescorer: scores texts.

    Raises:
        ConfigurationError: log-likelihoods are needed and nothing gives them, or samples think where none may.
        CriticError: the rescorer's answer makes no sense.
    """
    actions = list(merged)
    if prior == "frequency":
        counts = np.array([sum(one is not greedy for one in found) for found in merged.values()])
        forced = None if greedy is None else actions.index(greedy.action)
        return Opinion(prior, frequency_prior(counts, forced), rescored=False)
    samples = [one for found in merged.values() for one in found]
    if prior == "thoughts":
        if rescorer is None:
            raise ConfigurationError('prior="thoughts" scores every action under every thought: it needs a rescorer')
        # The greedy thought was not sampled; where nothing else is left, it is all there is.
        thoughts = [one.thought for one in samples if one is not greedy] or [one.thought for one in samples]
        return Opinion(prior, await over_thoughts(thoughts, actions, rescorer), rescored=True)
    return await _likelihood(samples, actions, rescorer)


async def listed_opinion(thoughts: Sequence[str], actions: Sequence[str], rescorer: Rescorer) -> Opinion:
    """The exact prior over all actions that the world lists. Raises as `sampled_opinion`."""
    return Opinion("list", await over_thoughts(thoughts, actions, rescorer), rescored=True)


async def over_thoughts(thoughts: Sequence[str], actions: Sequence[str], rescorer: Rescorer) -> FloatArray:
    """`[A]` log of the mean over the thoughts of pi(action | thought); equal thoughts are scored once.

    Raises:
        CriticError: the rescorer's answer makes no sense.
    """
    distinct = list(dict.fromkeys(thoughts))
    table = _checked(await rescorer.log_likelihoods(distinct, actions), (len(distinct), len(actions)))
    return mean_over_thoughts(table[[distinct.index(thought) for thought in thoughts]])


async def _likelihood(samples: Sequence[Sample], actions: Sequence[str], rescorer: Rescorer | None) -> Opinion:
    if any(one.thought for one in samples):
        raise ConfigurationError(
            'prior="likelihood" is that of texts without a thought, and these samples think first: use '
            'prior="thoughts", or "frequency"'
        )
    texts: dict[str, Sample] = {}
    for one in samples:
        key = one.text or one.action
        if key not in texts or texts[key].log_likelihood is None:
            texts[key] = one
    known = [one.log_likelihood for one in texts.values() if one.log_likelihood is not None]
    if len(known) == len(texts):
        owner = np.array([actions.index(one.action) for one in texts.values()])
        found = likelihood_prior(_checked(known, (len(known),)), owner, len(actions))
        return Opinion("likelihood", found, rescored=False)
    if rescorer is None:
        raise ConfigurationError(
            'prior="likelihood" needs the samples\' log-likelihoods at the sampling temperature, or a rescorer'
        )
    return Opinion("likelihood", await over_thoughts([""], actions, rescorer), rescored=True)


def _checked(found: Any, shape: tuple[int, ...]) -> FloatArray:
    table = np.asarray(found, dtype=np.float64)
    if table.shape != shape:
        raise CriticError(f"expected log-likelihoods of shape {list(shape)}, got {list(table.shape)}")
    # A little above 0 is rounding.
    if np.isnan(table).any() or (table > 1e-3).any():
        raise CriticError(f"expected log-likelihoods, at most 0 each, got {np.round(table, 4).tolist()}")
    return table
