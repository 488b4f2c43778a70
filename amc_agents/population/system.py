"""The particles of a run and their weights: what the verbs of Algorithm 1 (`loop`) work on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from amc_agents import smc
from amc_agents.population.feature import Features, Stop
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import Outlet, ParticleRunner
from amc_agents.population.settings import Settings
from amc_agents.run import Population, WeighingPoint
from amc_agents.settings import Select
from amc_agents.smc.filter import FilterState
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, FloatArray


@dataclass(frozen=True)
class Retired:
    """A finished particle that a resampling retired, with its weights and value at that time."""

    particle: Particle
    log_weight: float
    log_weight_since: float
    value: float


@dataclass
class Target:
    """The target pi* ~ pi exp(R / beta), as the critic knows it."""

    critic: Critic
    """Predicts the return."""
    beta: float | None
    """The temperature; None: not chosen yet, so all weights are equal."""
    beta_step: int | None = None
    """The step at which the particles' own values chose it; None: they did not."""

    @property
    def is_given(self) -> bool:
        """Whether beta is known and does not depend on the particles."""
        return self.beta is not None and self.beta_step is None


@dataclass
class ParticleSystem:
    """The particles of a run and their weights."""

    settings: Settings
    target: Target
    runner: ParticleRunner
    rng: np.random.Generator
    """The random stream of resampling and selection; particles have their own."""
    particles: list[Particle]
    """`[N]` the live slots."""
    weights: FilterState
    values: FloatArray
    """`[N]` at the last weighing."""
    known: BoolArray
    """`[N]` False where the last potential is not known."""
    retired: list[Retired] = field(default_factory=list)
    archive: Particle | None = None
    """The finished particle with the best return so far, which resampling cannot remove."""
    history: list[WeighingPoint] = field(default_factory=list)
    step: int = 0
    """The last weighing point."""

    @classmethod
    def of(
        cls, particles: list[Particle], settings: Settings, critic: Critic, runner: ParticleRunner
    ) -> ParticleSystem:
        """Create the system of new particles, with equal weights."""
        size, beta = settings.start_size, settings.beta
        # The seed is split: one stream serves resampling and selection, the particles have their own.
        return cls(
            settings,
            Target(critic, None if isinstance(beta, str) else beta),
            runner,
            np.random.default_rng([runner.outlet.seed, 1]),
            particles,
            smc.init(size),
            np.full(size, np.nan),
            np.ones(size, dtype=np.bool_),
        )

    @property
    def features(self) -> Features:
        """What the run does beside Algorithm 1."""
        return self.runner.features

    @property
    def outlet(self) -> Outlet:
        """Where the run writes its notes and events."""
        return self.runner.outlet

    @property
    def everyone(self) -> list[Particle]:
        """The live slots, then the retired particles."""
        return [*self.particles, *(retired.particle for retired in self.retired)]

    @property
    def log_weights(self) -> FloatArray:
        """`[M]` absolute log-weights of `everyone`."""
        return np.array([*self.weights.log_weights, *(retired.log_weight for retired in self.retired)])

    @property
    def all_values(self) -> FloatArray:
        """`[M]` values of `everyone` at their last weighings."""
        return np.array([*self.values, *(retired.value for retired in self.retired)])

    @property
    def ess(self) -> float:
        """Effective sample size of retired and live particles together."""
        log_weights = self.log_weights
        return float(smc.ess(log_weights)) if np.isfinite(log_weights).any() else 0.0

    @property
    def stop(self) -> Stop | None:
        """Why the run ends before all particles have ended; None: it goes on."""
        return self.features.stop(self)

    @property
    def concluded(self) -> bool:
        """Whether no particle can make another step."""
        return self.stop is not None or not any(particle.running for particle in self.particles)

    @property
    def at_door(self) -> bool:
        """Whether a particle waits before a commit call or at a question, and no particle can go on without it."""
        waiting = any(particle.running and particle.held for particle in self.particles)
        return waiting and self.stop is None and not any(particle.can_step for particle in self.particles)

    @property
    def due(self) -> bool:
        """Whether the particles are to be resampled: criterion c of Algorithm 1."""
        # Without a beta, a resampling could only discard particles at random.
        if self.concluded or self.target.beta is None:
            return False
        return bool(self.settings.resample.triggered(self.step, self.weights.log_weights, self.drawn))

    @property
    def drawn(self) -> BoolArray:
        """`[N]` the particles from which a resampling draws; "keep" includes the finished ones."""
        return np.full(len(self.particles), True) if self.settings.finished == "keep" else ~self.retirable

    @property
    def retirable(self) -> BoolArray:
        """`[N]` finished particles whose final potential is known."""
        return np.array([particle.finished for particle in self.particles]) & self.known

    @property
    def is_conditional(self) -> bool:
        """Whether all particles continue one that was selected, so that the evidence is conditional on its past."""
        return any(point.selected is not None for point in self.history)

    @property
    def log_evidence(self) -> float:
        """Log Z; NaN if particles are unfinished or have no value at their end, or a feature hides it.

        It is also NaN for a beta that depends on the particles, whose evidence has no expectation to estimate.
        """
        unknown = (
            self.stop is not None or not self.known.all() or any(hides(self) for hides in self.features.hides_evidence)
        )
        return float("nan") if unknown or not self.target.is_given else float(smc.log_evidence(self.weights))

    @property
    def pick(self) -> Select:
        """The criterion of the answer; without a beta, the largest value has the largest weight for any beta."""
        pick = self.settings.pick
        return "value" if pick == "weight" and self.target.beta is None else pick

    @property
    def population(self) -> Population:
        """The current particles, their weights and values."""
        since = [*self.weights.log_weights_since, *(retired.log_weight_since for retired in self.retired)]
        return Population(
            trajectories=tuple(map(self.runner.trajectory_of, self.everyone)),
            log_weights=self.log_weights,
            log_weights_since=np.array(since),
            values=self.all_values,
            failed=tuple(particle.error is not None for particle in self.everyone),
        )

    def retire(self, slot: int) -> Retired:
        """Return the finished particle of a slot with its current weights and value."""
        weights = self.weights
        return Retired(
            self.particles[slot],
            float(weights.log_weights[slot]),
            float(weights.log_weights_since[slot]),
            float(self.values[slot]),
        )

    def note(self, text: str) -> None:
        """Add a note to the run."""
        self.outlet.notes.append(text)

    def emit(self, event: str, **fields: object) -> None:
        """Send an event of the run to the outer graph's custom stream."""
        self.outlet.emit({"type": event, **fields})
