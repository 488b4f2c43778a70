"""Select the particle that acts in reality, among the waiting and the finished ones."""

from __future__ import annotations

from amc_agents.population.conclusion import population_of
from amc_agents.population.particle import Particle
from amc_agents.population.population import ParticleSystem
from amc_agents.population.selection import select_index
from amc_agents.settings import Select


def select_at_door(system: ParticleSystem) -> Particle:
    """Return the particle with the largest potential; a finished one wins if none of the waiting promises more.

    `select="weight"` and `"sample"` apply here too. `"return"` does not, because a waiting particle has not earned its
    return yet: what counts is the return so far plus the critic's prediction.
    """
    pick: Select = "value" if system.pick == "return" else system.pick
    population = population_of(system)
    index = select_index(system.rng, population, pick)
    winner, archived = system.everyone[index], system.archive
    if system.settings.pick == "return" and archived is not None and archived.return_ > population.values[index]:
        return archived
    return winner
