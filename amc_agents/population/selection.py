"""Which particle's trajectory a run returns."""

from __future__ import annotations

import numpy as np

from amc_agents import smc
from amc_agents.run import Population
from amc_agents.settings import Select


def selected(rng: np.random.Generator, population: Population, select: Select) -> int:
    """The index of the selected particle; one that failed is never selected.

    A value is NaN where the critic failed and `on_critic_error="uniform"` passed it over. "value" selects among the
    particles whose value is known; where none is, it selects by weight, which holds what the critic said before.

    Args:
        rng: source of the draw of "sample".
        population: with at least one particle of positive weight.
        select: "return", "value", "weight" or "sample", as in `amc`.
    """
    alive = np.isfinite(population.log_weights)
    known = alive & np.isfinite(population.values)
    if select == "sample":
        return int(rng.choice(len(alive), p=smc.normalised(population.log_weights)))
    if select == "return":
        scores = np.array([trajectory.return_ for trajectory in population.trajectories])
    elif select == "value" and known.any():
        alive, scores = known, population.values
    else:
        # Absolute weights: those since the last resampling are of other segments for retired particles.
        scores = population.log_weights
    return int(np.argmax(np.where(alive, scores, -np.inf)))
