"""A twisted proposal: candidates of each particle are weighed before any of them becomes a particle."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from found import Found, Model, S
from without_replacement import merged_log_weights, shared_out, without_replacement

from amc_agents.types import FloatArray, IntArray


class Propose(Protocol[S]):
    """Makes candidates for the next step."""

    async def __call__(
        self, model: Model[S], states: Sequence[S], log_weights: FloatArray
    ) -> tuple[list[S], IntArray, FloatArray]:
        """Return the candidates, their parents' indices, and the logs of their shares of the parents' weights."""
        ...


async def looking_ahead(
    model: Model[S],
    n: int,
    points: Collection[int],
    beta: float,
    rng: np.random.Generator,
    propose: Propose[S],
) -> Found[S]:
    """Weigh several candidates of each particle, and resample without replacement: no particle is a clone.

    Args:
        model: policy, world and critic.
        n: maximum number of particles after a resampling.
        points: steps after which to weigh and resample; elsewhere, all distinct candidates become particles, with their
            parents' potential.
        beta: of the target.
        rng: for resampling.
        propose: makes the candidates, such as `Sampled(15)`.
    """
    found: Found[S] = Found()
    states, log_weights, potentials = merged(await model.begin(n), np.full(n, -np.log(n)), np.zeros(n))
    step = 0
    while states:
        moved, parents, log_shares = await propose(model, states, log_weights)
        step += 1
        states, log_weights, potentials = merged(moved, log_weights[parents] + log_shares, potentials[parents])
        ended = np.array([state.finished for state in states])
        weighed = np.flatnonzero(ended | (step in points))
        if len(weighed):
            values = await model.values([states[index] for index in weighed])
            log_weights[weighed] += values / beta - potentials[weighed]
            potentials[weighed] = values / beta
            for index, value in zip(weighed, values, strict=True):
                if ended[index]:
                    found.add(states[index], float(log_weights[index]), float(value))
        live = np.flatnonzero(~ended)
        log_weights = log_weights[live]
        if step in points and len(live):
            kept, log_weights = without_replacement(rng, log_weights, n)
            live = live[kept]
        states, potentials = [states[index] for index in live.tolist()], potentials[live]
    return found


@dataclass(frozen=True)
class Sampled:
    """Candidates sampled from the policy: each has an equal share of its parent's weight."""

    calls: int
    """Turns per step."""

    async def __call__(
        self, model: Model[S], states: Sequence[S], log_weights: FloatArray
    ) -> tuple[list[S], IntArray, FloatArray]:
        """Return the candidates, their parents' indices, and the logs of their shares of the parents' weights."""
        shares = shared_out(self.calls, log_weights)
        parents = np.repeat(np.arange(len(states)), shares)
        return await model.step([states[index] for index in parents.tolist()]), parents, -np.log(shares[parents])


def merged(
    states: Sequence[S], log_weights: FloatArray, potentials: FloatArray
) -> tuple[list[S], FloatArray, FloatArray]:
    """Merge equal states; their weights add up."""
    first, totals = merged_log_weights(states, log_weights)
    return [states[index] for index in first.tolist()], totals, potentials[first]
