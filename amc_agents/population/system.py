"""The particles of a run and their weights: what the verbs of Algorithm 1 (`loop`) work on.

Below the system are the moves of its particles: wait until they have stopped, count those that failed, and continue
some of them in further slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from langchain_core.runnables import RunnableConfig

from amc_agents import smc
from amc_agents.errors import QuorumLost, brief_causes
from amc_agents.population.feature import Features, Stop
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import Outlet, ParticleRunner, Tasks
from amc_agents.population.settings import Settings
from amc_agents.quoting import cause_of
from amc_agents.run import Population, WeighingPoint
from amc_agents.settings import Select
from amc_agents.smc.filter import FilterState
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, FloatArray, IntArray, Trajectory


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

    def note_failures(self, causes: Sequence[Exception]) -> None:
        """Add a note about the particles that failed."""
        note = (
            f"{len(causes)} of {len(self.particles)} particles failed: log Z refers to runs that do not fail "
            f"({brief_causes(causes)})"
        )
        if note not in self.outlet.notes:
            self.note(note)

    def emit(self, event: str, **fields: object) -> None:
        """Send an event of the run to the outer graph's custom stream."""
        self.outlet.emit({"type": event, **fields})


async def wait(system: ParticleSystem, tasks: Tasks, config: RunnableConfig) -> None:
    """Wait until the tasks of particles have ended, or the run ends abruptly."""

    def stopped(particle: Particle) -> bool:
        """Consider a particle that has stopped, and return whether the run ends."""
        archive(system, particle)
        for on_step in system.features.on_step:
            on_step(system, particle)
        if (stop := system.stop) is not None:
            system.runner.stopping.set()
        return stop is not None

    if waits := system.features.around_wait:
        await waits[0](system, tasks, config, stopped)
    else:
        await wait_for(system, tasks, stopped)


async def wait_for(system: ParticleSystem, tasks: Tasks, stopped: Callable[[Particle], bool]) -> None:
    """Call `stopped` for each particle whose task has ended, until all have or the run ends abruptly."""
    ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    for _ in tasks:
        task = await ended.get()
        task.result()
        if stopped(tasks[task]) and (stop := system.stop) is not None and stop.abrupt:
            return


def archive(system: ParticleSystem, particle: Particle) -> None:
    """Keep the finished particle with the best return."""
    if system.settings.rewards_observed and particle.succeeded:
        if system.archive is None or particle.return_ > system.archive.return_:
            system.archive = particle


def check_quorum(system: ParticleSystem) -> list[Exception]:
    """Return the failures of particles, unless too many failed."""
    causes = [particle.error for particle in system.particles if particle.error is not None]
    alive = len(system.particles) - len(causes)
    least = system.settings.least_alive(len(system.particles))
    if alive < least:
        raise QuorumLost(alive, least, causes) from cause_of(causes[0])
    return causes


async def continue_from(system: ParticleSystem, ancestors: IntArray, retired: Sequence[Retired]) -> None:
    """Make slot i continue particle `ancestors[i]`; the first offspring keeps its ancestor's world.

    Args:
        system: the particles.
        ancestors: `[M]` slots.
        retired: the particles that are kept outside of the slots.
    """
    for before_offspring in system.features.before_offspring:
        before_offspring(system)
    old, runner = list(system.particles), system.runner
    forks = {slot: old[source] for slot, source in enumerate(ancestors.tolist()) if slot != source}
    parents = {id(parent): parent for parent in forks.values() if parent.running}
    await asyncio.gather(*(runner.save(parent) for parent in parents.values()))
    offspring = await asyncio.gather(*(runner.fork(parent, slot) for slot, parent in forks.items()))
    children = dict(zip(forks, offspring, strict=True))
    for name in sorted({name for parent in parents.values() for name in runner.streams.lost_by_fork(parent)}):
        note = f"the state's `{name}` (UntrackedValue) holds an object that cannot be copied: forks start without it"
        if note not in system.outlet.notes:
            system.note(note)
    particles = [children[slot] if slot in children else old[slot] for slot in range(len(ancestors))]
    all_retired = [*system.retired, *retired]
    kept = {id(particle) for particle in particles} | {id(kept.particle) for kept in all_retired}
    kept.add(id(system.archive))  # It may become the answer, with its world.
    await asyncio.gather(*(runner.discard(particle) for particle in old if id(particle) not in kept))
    system.particles, system.retired = particles, all_retired


def dropped(system: ParticleSystem, ancestors: IntArray, retired: Sequence[int]) -> dict[int, Trajectory]:
    """Return the trajectories of the particles that have no offspring and are not retired, by slot."""
    kept = {*ancestors.tolist(), *retired}
    slots = (slot for slot in range(len(system.particles)) if slot not in kept)
    return {slot: system.runner.trajectory_of(system.particles[slot]) for slot in slots}
