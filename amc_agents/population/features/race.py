"""A race: the first particle that finishes is the answer, and the others are cancelled at once with their requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.population.feature import Feature
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Trajectory


@dataclass(frozen=True)
class Race:
    """`amc(agent, race=Race())`: N particles run freely, and the first to finish is the answer.

    It costs less than N runs and less time than one: on 445 public runs of a coding agent, five a task, 3.7 runs' cost
    and 0.74 of the time of a run, for .910 instead of .787 of the tasks. On other agents it is worse than a single run:
    ask your logs (`amc advise`).

    Raises:
        ConfigurationError: `finish` is below 1.
    """

    accept: Callable[[Trajectory], bool] | None = None
    """Whether a finished trajectory may be the answer, such as one whose tests pass; otherwise the race goes on to the
    next. None: every one may. If none is accepted, all particles end, and `select` chooses among them."""
    picks: ClassVar[bool] = True
    """The answer does not depend on values."""
    finish: int = 1
    """The race ends when so many particles have finished and were accepted; `select` chooses among them."""

    def __post_init__(self) -> None:
        """Check the number."""
        if self.finish < 1:
            raise ConfigurationError(f"finish must be at least 1, got {self.finish}")

    def __call__(self) -> Feature:
        """Make the feature of a run."""
        return _Running(self)


class _Running(Feature):
    """The race of a run."""

    name = "race"
    abrupt = True

    def __init__(self, race: Race) -> None:
        self._race = race
        self._arrived: list[Particle] = []
        """The accepted particles, in the order in which they finished."""

    def on_step(self, system: ParticleSystem, particle: Particle) -> None:
        """Take down who has finished."""
        # A particle that the horizon cut has not finished its work.
        if not particle.succeeded or particle.past.at_horizon or self.stops(system) is not None:
            return
        accept = self._race.accept
        if accept is not None and not accept(system.runner.trajectory_of(particle)):
            return
        self._arrived.append(particle)
        if len(self._arrived) == self._race.finish and any(each.running for each in system.particles):
            system.note(
                f"the race ended with particle {particle.index} after {particle.steps} steps: the others were stopped, "
                "and log Z is not known"
            )

    def stops(self, system: ParticleSystem) -> str | None:
        """Return "race" when enough particles have arrived."""
        return "race" if len(self._arrived) >= self._race.finish else None

    def answer(self, system: ParticleSystem) -> Particle | None:
        """Return the particle that has won; None: `select` chooses among several."""
        return self._arrived[0] if self._arrived and self._race.finish == 1 else None

    def candidates(self, system: ParticleSystem) -> BoolArray | None:
        """Return the particles that have arrived; None: too few have, so every finished particle may be picked."""
        if self.stops(system) is None:
            return None
        return np.array([any(particle is each for each in self._arrived) for particle in system.everyone])
