"""AMC with a falling number of particles, or with softened weights; finished particles are retired."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from found import Found, Model, S
from softening import softened

from amc_agents.smc import log_sum_exp, systematic


async def weighed(
    model: Model[S],
    sizes: Sequence[int],
    points: Collection[int],
    beta: float,
    rng: np.random.Generator,
    rho: float | None = None,
) -> Found[S]:
    """Weigh and resample the particles.

    Args:
        model: policy, world and critic.
        sizes: N at the start, and after each resampling; the last size stays.
        points: steps after which to weigh and resample.
        beta: of the target.
        rng: for resampling.
        rho: soften the weights of unfinished particles until their effective sample size is rho N; None: do not.
    """
    found: Found[S] = Found()
    left = list(sizes)
    states = await model.begin(left[0])
    log_weights, potentials = np.full(len(states), -np.log(len(states))), np.zeros(len(states))
    step = 0
    while True:
        live = [index for index, state in enumerate(states) if not state.finished]
        for index, state in zip(live, await model.step([states[index] for index in live]), strict=True):
            states[index] = state
        step += 1
        ended = np.array([state.finished for state in states])
        if step not in points and not ended.all():
            continue
        values = await model.values(states)
        beta_now = np.full(len(states), beta)
        if rho is not None and not ended.all():
            beta_now[~ended] = softened(values[~ended], potentials[~ended], log_weights[~ended], beta, rho)
        log_weights, potentials = log_weights + values / beta_now - potentials, values / beta_now
        for index in np.flatnonzero(ended).tolist():
            found.add(states[index], float(log_weights[index]), float(values[index]))
        if ended.all():
            return found
        left = left[1:] or left
        drawable = np.where(ended, -np.inf, log_weights)
        ancestors = systematic(rng, drawable, left[0])
        log_weights = np.full(left[0], float(log_sum_exp(drawable)) - np.log(left[0]))
        states, potentials = [states[index] for index in ancestors.tolist()], potentials[ancestors]
