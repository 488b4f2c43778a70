"""AMC with several proposals: finished particles are retired, and offspring keep their ancestor's proposal."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from amc_agents.smc import log_sum_exp, systematic
from reproduce.beyond.found import Found, Model, S


async def independent(model: Model[S], n: int, beta: float) -> Found[S]:
    """Best-of-N: no resampling."""
    return await filtered(model, n, (), beta, np.random.default_rng())


async def filtered(model: Model[S], n: int, points: Collection[int], beta: float, rng: np.random.Generator) -> Found[S]:
    """Weigh and resample the particles; finished particles are retired.

    Args:
        model: policy, world and critic.
        n: number of particles.
        points: steps after which to weigh and resample.
        beta: of the target.
        rng: for resampling.
    """
    found: Found[S] = Found()
    states = await model.begin(n)
    log_weights, potentials = np.full(n, -np.log(n)), np.zeros(n)
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
        log_weights, potentials = log_weights + values / beta - potentials, values / beta
        for index in np.flatnonzero(ended).tolist():
            found.add(states[index], float(log_weights[index]), float(values[index]))
        if ended.all():
            return found
        drawable = np.where(ended, -np.inf, log_weights)
        ancestors = systematic(rng, drawable, n)
        log_weights = np.full(n, float(log_sum_exp(drawable)) - np.log(n))
        states, potentials = [states[index] for index in ancestors.tolist()], potentials[ancestors]
