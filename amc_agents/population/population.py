"""A population of particles over one run: propagate, weigh, resample, conclude (AMC, Algorithm 1).

The arithmetic is `amc_agents.smc`; this file is the effects around it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableConfig

from amc_agents import smc
from amc_agents.errors import AllWeightsZero, QuorumLost, RunTimedOut, brief_causes
from amc_agents.population.particle import Particle, ParticleRunner
from amc_agents.population.search_notes import reward_notes, search_notes
from amc_agents.population.selection import selected
from amc_agents.population.settings import Settings
from amc_agents.population.time_limits import Deadline, stop
from amc_agents.population.twins import Twins
from amc_agents.population.valuation import valued
from amc_agents.quoting import cause_of
from amc_agents.run import Population, Run, WeighingPoint
from amc_agents.runtime.world import Worlds
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, IntArray
from amc_agents.usage import Meter

_log = logging.getLogger(__name__)

Emit = Callable[[dict[str, Any]], None]
"""Takes the events of a run as they happen."""


@dataclass
class _Retired:
    """A finished particle that was put away, with the weights it had then."""

    particle: Particle
    log_weight: float
    log_weight_since: float
    value: float


@dataclass
class ParticleSystem:
    """The particles of one run, and their weights."""

    worlds: Worlds
    """Those of the particles, and of all that ever were; empty where there is no environment."""
    runner: ParticleRunner
    settings: Settings
    critic: Critic
    seed: int
    meter: Meter
    emit: Emit
    deadline: Deadline = field(default_factory=Deadline)
    particles: list[Particle] = field(default_factory=list)
    retired: list[_Retired] = field(default_factory=list)
    history: list[WeighingPoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    archive: Particle | None = None
    """The finished particle of the best return so far; resampling cannot lose it."""
    winner: Particle | None = None
    """The particle whose trajectory is the answer, once the run is concluded."""
    step: int = 0
    """The last point at which the particles met."""
    due: bool = False
    """They are to be resampled there."""

    def __post_init__(self) -> None:
        """Split the seed: one stream for resampling and selection, the particles have their own."""
        self._rng = np.random.default_rng([self.seed, 1])
        self._weights = smc.init(self.settings.n_particles)
        self._values = np.full(self.settings.n_particles, np.nan)
        self._known = np.ones(self.settings.n_particles, dtype=np.bool_)
        self._stop = asyncio.Event()
        self._twins = Twins()

    async def propagate(self, config: RunnableConfig) -> None:
        """Let every particle run freely to the next weighing point, or to its end.

        Args:
            config: for the particles that start here.
        """
        if self.deadline.passed:
            return
        until = self.settings.resample.next_point(self.step)
        if until is not None and until >= self.settings.horizon:
            until = None
        tasks = [
            self.runner.advancing(particle, until, self._stop, config)
            for particle in self.particles
            if particle.running
        ]
        moving = [particle.running for particle in self.particles]
        try:
            async with self.deadline.cutting():
                for finished in asyncio.as_completed(tasks):
                    await finished
                    self._archive_and_maybe_stop()
        finally:
            await stop(tasks)
        if self.deadline.passed:
            self._archive_and_maybe_stop()
            self._values[moving] = np.nan  # Those were of an earlier step.
            return
        self.step = max(particle.steps for particle in self.particles) if until is None else until
        self._check_quorum()

    @property
    def concluded(self) -> bool:
        """No particle can make another step."""
        return self._cut_short or not any(particle.running for particle in self.particles)

    @property
    def _cut_short(self) -> bool:
        """The run ended while particles were unfinished."""
        return self._stop.is_set() or self.deadline.passed

    async def weigh(self) -> None:
        """Weigh the particles where they stand, and see whether they are due to be resampled."""
        if not self.deadline.passed:
            async with self.deadline.cutting():
                valuation = await valued(self.particles, self.critic, self.runner, self.settings, self.meter)
        if self.deadline.passed:
            return
        if valuation.error is not None:
            self.notes.append(f"step {self.step}: the critic failed and the weights were kept ({valuation.error})")
        self._values, self._known = valuation.values, ~np.isnan(valuation.potentials)
        self._weights = smc.weigh(self._weights, valuation.potentials, self._known)
        # What a resampling would draw from: "keep" draws from finished particles too.
        live = np.full(len(self.particles), True) if self.settings.finished == "keep" else ~self._weighed_to_the_end()
        triggered = self.settings.resample.triggered(self.step, self._weights.log_weights, live)
        self.due = not self.concluded and bool(triggered)
        self.history.append(
            WeighingPoint(self.step, self._values.copy(), self._weights.log_weights.copy(), self._ess(), None)
        )
        self.emit({"type": "amc.weigh", "step": self.step, "values": self._values.tolist(),
                   "log_weights": self._weights.log_weights.tolist(), "ess": self.history[-1].ess})  # fmt: skip

    async def resample(self) -> None:
        """Draw who goes on: discard light particles, fork heavy ones, put finished ones away."""
        self._look_at_twins()
        before = self._weights
        after, info = smc.resample(
            self._rng, before, self._weighed_to_the_end(), scheme=self.settings.scheme, mode=self.settings.finished
        )
        if not info.resampled:
            self._weights = after
            return
        ancestors = info.ancestors
        slots = tuple(np.flatnonzero(info.retired).tolist())
        retired = [
            _Retired(
                self.particles[slot],
                float(before.log_weights[slot]),
                float(before.log_weights_since[slot]),
                float(self._values[slot]),
            )
            for slot in slots
        ]
        async with self.deadline.cutting():
            await self._continue_from(ancestors, retired)
        if self.deadline.passed:
            return
        self._weights, self._values = after, self._values[ancestors]
        self.history[-1] = replace(self.history[-1], ancestors=ancestors.copy(), retired=slots)
        self.emit({"type": "amc.resample", "step": self.step, "ancestors": ancestors.tolist(),
                   "retired": list(slots)})  # fmt: skip

    def conclude(self) -> Run:
        """Pick the answer and make the run a value.

        Raises:
            AllWeightsZero: no particle has any weight left.
            RunTimedOut: the run's time was over before any particle finished.
        """
        everyone = [*self.particles, *(one.particle for one in self.retired)]
        if self.deadline.passed:
            self._require_finished(everyone)
        population = Population(
            trajectories=tuple(self.runner.trajectory_of(particle) for particle in everyone),
            log_weights=np.array([*self._weights.log_weights, *(one.log_weight for one in self.retired)]),
            log_weights_since=np.array(
                [*self._weights.log_weights_since, *(one.log_weight_since for one in self.retired)]
            ),
            values=np.array([*self._values, *(one.value for one in self.retired)]),
            failed=tuple(particle.error is not None for particle in everyone),
        )
        eligible = self._eligible(population, everyone)
        if not np.isfinite(eligible.log_weights).any():
            raise AllWeightsZero(len(everyone), "the end of the run")
        if self.settings.pick == "value" and not np.isfinite(eligible.values).any():
            self.notes.append("no particle's final value is known: the answer was selected by weight")
        index = selected(self._rng, eligible, self.settings.pick)
        best = everyone[index]
        if self.settings.pick == "return" and self.archive and self.archive.return_ > best.return_:
            index, best = -1, self.archive
        self.winner = best
        self.notes += reward_notes([particle.return_ for particle in everyone], self.settings)
        self._look_at_twins()
        twins = self._twins.notes(self.settings.n_particles)
        for note in twins + search_notes(self.history, self.settings, stopped=self._cut_short):
            self.notes.append(note)
            warn_once(note)
        if self.worlds.close_errors:
            error = self.worlds.close_errors[0]
            self.notes.append(
                f"worlds that could not be closed: {len(self.worlds.close_errors)} ({type(error).__name__}: {error})"
            )
        return Run(
            best=self.runner.trajectory_of(best),
            best_index=index,
            population=population,
            history=tuple(self.history),
            log_evidence=self._log_evidence(),
            usage=self.meter.read(),
            seed=self.seed,
            config=self.settings.as_plain(),
            select=self.settings.pick,
            deployable=not self.settings.rewards_observed,
            notes=tuple(self.notes),
            outputs=tuple(particle.state for particle in everyone),
            best_output=best.state,
            usage_by_model=self.meter.by_model(),
        )

    async def close(self) -> None:
        """Stop every agent and close every world."""
        everyone = [*self.particles, *(kept.particle for kept in self.retired)]
        await asyncio.gather(*(self.runner.stop(particle) for particle in everyone if particle.stream is not None))
        await self.worlds.close_all()

    async def _continue_from(self, ancestors: IntArray, retired: Sequence[_Retired]) -> None:
        """Make slot i go on from particle `ancestors[i]`; the first offspring keeps its ancestor's world."""
        old = list(self.particles)
        forks = {slot: old[source] for slot, source in enumerate(ancestors.tolist()) if slot != source}
        parents = {id(parent): parent for parent in forks.values() if parent.running}
        await asyncio.gather(*(self.runner.save(parent) for parent in parents.values()))
        offspring = await asyncio.gather(*(self.runner.fork(parent, slot) for slot, parent in forks.items()))
        particles = [*old]
        for slot, child in zip(forks, offspring, strict=True):
            particles[slot] = child
        kept = {id(particle) for particle in [*particles, *(one.particle for one in [*self.retired, *retired])]}
        await asyncio.gather(*(self.runner.discard(particle) for particle in old if id(particle) not in kept))
        self.particles, self.retired = particles, [*self.retired, *retired]

    def _weighed_to_the_end(self) -> BoolArray:
        """`[N]` finished particles that may be put away: one whose final potential is not known yet may not."""
        return np.array([particle.finished for particle in self.particles]) & self._known

    def _log_evidence(self) -> float:
        """Log Z; NaN where particles were left unfinished, or unweighed at their end."""
        unknown = self._cut_short or not self._known.all()
        return float("nan") if unknown else float(smc.log_evidence(self._weights))

    def _ess(self) -> float:
        log_weights = np.array([*self._weights.log_weights, *(one.log_weight for one in self.retired)])
        return float(smc.ess(log_weights)) if np.isfinite(log_weights).any() else 0.0

    def _eligible(self, population: Population, everyone: Sequence[Particle]) -> Population:
        """The particles that may be the answer keep their weight: the finished ones where the time was over."""
        if not self.deadline.passed:
            return population
        finished = np.array([particle.finished for particle in everyone])
        return replace(
            population,
            log_weights=np.where(finished, population.log_weights, -np.inf),
            values=np.where(finished, population.values, np.nan),
        )

    def _archive_and_maybe_stop(self) -> None:
        if not self.settings.rewards_observed:
            return
        for particle in self.particles:
            if (
                particle.finished
                and particle.error is None
                and (self.archive is None or particle.return_ > self.archive.return_)
            ):
                self.archive = particle
        best = self.archive.return_ if self.archive else -np.inf
        if self.settings.stop_at is not None and best >= self.settings.stop_at and not self._stop.is_set():
            self._stop.set()
            self.notes.append(
                f"stopped at return {best:g} >= stop_at: the other particles are unfinished and log Z is not known"
            )

    def _check_quorum(self) -> None:
        causes = [particle.error for particle in self.particles if particle.error is not None]
        alive = len(self.particles) - len(causes)
        if alive < self.settings.least_alive:
            raise QuorumLost(alive, self.settings.least_alive, causes) from cause_of(causes[0])
        if causes:
            lost = (
                f"{len(causes)} of {len(self.particles)} particles failed: log Z is that of runs that do not fail "
                f"({brief_causes(causes)})"
            )
            if lost not in self.notes:
                self.notes.append(lost)

    def _require_finished(self, everyone: Sequence[Particle]) -> None:
        limit = self.deadline.limit_s
        assert limit is not None
        finished = sum(particle.finished and particle.error is None for particle in everyone)
        if not finished:
            raise RunTimedOut(limit, [self.runner.trajectory_of(particle) for particle in everyone])
        self.notes.append(
            f"run_timeout={limit:g} s passed: the answer is the best of {finished} finished trajectories; the other "
            "particles are unfinished and log Z is not known"
        )

    def _look_at_twins(self) -> None:
        alive = [particle for particle in self.particles if particle.error is None]
        self._twins.look([self.runner.trajectory_of(particle) for particle in alive])


@functools.lru_cache(maxsize=128)
def warn_once(note: str) -> None:
    """Log a note on settings. A thousand runs with the same settings log it once."""
    _log.warning(note)
