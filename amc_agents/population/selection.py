"""Select the particle whose trajectory is the answer of a run."""

from __future__ import annotations

import numpy as np

from amc_agents import smc
from amc_agents.run import Population
from amc_agents.settings import Select


def select_index(rng: np.random.Generator, population: Population, select: Select) -> int:
    """Return the index of the selected particle; failed particles are never selected.

    A value is NaN if the critic failed under `on_critic_error="uniform"`. "value" selects among the particles with a
    known value. If no value is known, it selects by weight, which contains the critic's earlier values.

    Args:
        rng: random generator for "sample".
        population: at least one particle has a positive weight.
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
        # Absolute weights: those since the last resampling cover other steps for retired particles.
        scores = population.log_weights
    return int(np.argmax(np.where(alive, scores, -np.inf)))
