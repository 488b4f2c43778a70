"""What a view shows of a population, read from another thread while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from amc_agents import smc
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.run import WeighingPoint


@dataclass(frozen=True)
class ParticleRow:
    """A live slot."""

    slot: int
    steps: int
    state: str
    return_: float
    value: float
    """At the last weighing; NaN before the first."""
    share: float
    """Its share of the weight of all particles, retired ones included."""
    action: str
    """Its last action."""


@dataclass(frozen=True)
class Snapshot:
    """A population at one moment."""

    name: str
    particles: tuple[ParticleRow, ...]
    n_retired: int
    points: tuple[WeighingPoint, ...]
    """The weighings so far."""
    calls: int
    tokens: int
    """Of all roles."""
    budget: Mapping[str, tuple[float, float]]
    """What is spent of each limit."""
    held_back_s: float = 0.0
    """Seconds for which a rate limit holds all requests back."""

    @property
    def step(self) -> int:
        """The largest number of steps."""
        return max((particle.steps for particle in self.particles), default=0)

    @property
    def n_resampled(self) -> int:
        """Number of resamplings."""
        return sum(point.ancestors is not None for point in self.points)

    def number(self, *states: str) -> int:
        """Return the number of particles in these states."""
        return sum(particle.state in states for particle in self.particles)


def snapshot(name: str, system: ParticleSystem) -> Snapshot:
    """Read a population. The run may change it meanwhile, so the lists may differ in length by some particles."""
    used = [usage for usage in system.meter.read().values()]
    budget = system.settings.budget
    spent = {} if budget is None else budget.spent
    rows = zip([*system.particles], system.values.tolist(), _shares(system), strict=False)
    return Snapshot(
        name,
        tuple(_row(particle, value, share) for particle, value, share in rows),
        len(system.retired),
        tuple(system.history),
        sum(usage.calls for usage in used),
        sum(usage.tokens for usage in used),
        {} if budget is None else {name: (spent[name], limit) for name, limit in budget.limits.items()},
        system.runner.gate.opens_in_s,
    )


def _shares(system: ParticleSystem) -> list[float]:
    log_weights = system.log_weights
    if not np.isfinite(log_weights).any():
        return [0.0] * len(log_weights)
    return [float(share) for share in smc.normalised(log_weights)]


def _row(particle: Particle, value: float, share: float) -> ParticleRow:
    steps = () if particle.reader is None else particle.reader.trajectory.steps
    action = steps[-1].action if steps else ""
    return ParticleRow(particle.index, particle.steps, _state_of(particle), particle.return_, value, share, action)


def _state_of(particle: Particle) -> str:
    if particle.error is not None:
        return "failed"
    if particle.finished:
        return "cut" if particle.at_horizon else "finished"
    if particle.held:
        return "waits"
    return "queued" if particle.queued else "runs"
