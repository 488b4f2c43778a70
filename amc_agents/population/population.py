"""A population of particles during a run: propagate, weigh, resample (AMC, Algorithm 1).

The arithmetic is in `amc_agents.smc`; this file adds the effects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from langchain_core.runnables import RunnableConfig

from amc_agents import smc
from amc_agents.commits import Commit
from amc_agents.errors import BudgetExhausted, QuorumLost, brief_causes
from amc_agents.population.adaptive.rule import UNDECIDED, Rule, Standing
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import ParticleRunner
from amc_agents.population.run_budget import RunBudget, Tasks
from amc_agents.population.settings import Settings
from amc_agents.population.time_limits import Deadline, stop
from amc_agents.population.twins import Twins
from amc_agents.population.valuation import evaluate
from amc_agents.quoting import cause_of
from amc_agents.run import WeighingPoint
from amc_agents.runtime.world import Worlds
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, FloatArray, IntArray
from amc_agents.usage import Meter

Emit = Callable[[dict[str, Any]], None]
"""Receives the events of a run as they happen."""
Recruit = Callable[[int, int], Awaitable[list[Particle]]]
"""Creates new particles, which start from the agent's input: (their number, number of earlier particles)."""


class Durable(Protocol):
    """Makes a population survive its process."""

    async def save(self, system: ParticleSystem, then: str) -> dict[str, Any] | None:
        """Save the population; a restored one goes on at the node `then`.

        Returns:
            A description of the point, for the graph's state; None: this population cannot be saved.
        """
        ...


@dataclass
class Retired:
    """A finished particle that a resampling retired, with its weights and value at that time."""

    particle: Particle
    log_weight: float
    log_weight_since: float
    value: float


@dataclass
class ParticleSystem:
    """The particles of a run and their weights."""

    worlds: Worlds
    """All worlds of the run, those of discarded particles included; empty without an environment."""
    runner: ParticleRunner
    settings: Settings
    critic: Critic
    seed: int
    meter: Meter
    emit: Emit
    deadline: Deadline = field(default_factory=Deadline)
    budget: RunBudget | None = None
    particles: list[Particle] = field(default_factory=list)
    """`[N]` the live slots."""
    retired: list[Retired] = field(default_factory=list)
    history: list[WeighingPoint] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    archive: Particle | None = None
    """The finished particle with the best return so far, which resampling cannot remove."""
    step: int = 0
    """The last weighing point."""
    last_pause: int = 0
    """The last step at which the particles waited for each other."""
    at_pause: bool = False
    """Whether they wait there for a durable point only, without being weighed."""
    due: bool = False
    """Whether the particles are to be resampled there."""
    durable: Durable | None = None
    """Saves the population; None: it is lost with the process."""
    recruit: Recruit | None = None
    n_earlier: int = 0
    """Number of particles of the earlier rounds of an adaptive run."""
    decided: bool = False
    """Whether an adaptive run stopped early; unfinished particles were then cancelled."""
    selected: int | None = None
    """The slot whose waiting particle goes on alone."""
    chosen_past: bool = False
    """Whether all particles continue one that was selected, so that the evidence is conditional on its past."""
    answer: Particle | None = None
    """The finished particle that was preferred to all waiting ones, and ends the run."""
    commits: list[Commit] = field(default_factory=list)
    """The calls of commit tools so far."""
    n_attempts: int = 0
    """Number of attempts to make such a call, repeated ones included."""

    def __post_init__(self) -> None:
        """Split the seed: one stream serves resampling and selection, the particles have their own."""
        self.rng = np.random.default_rng([self.seed, 1])
        self.weights = smc.init(self.settings.start_size)
        self.values = np.full(self.settings.start_size, np.nan)
        self.twins = Twins()
        self.known = np.ones(self.settings.start_size, dtype=np.bool_)
        """`[N]` False where the last potential is not known."""
        self._stop = asyncio.Event()
        adaptive = self.settings.adaptive
        self._rule = None if adaptive is None else Rule(adaptive, self.settings, self.critic, self.runner.trajectory_of)

    async def propagate(self, config: RunnableConfig) -> None:
        """Run every particle to the next weighing point or to its end, or to a pause on the way (`at_pause`).

        Args:
            config: for the particles that start here.
        """
        self.at_pause = False
        if self.stopped_by is not None:
            return
        until = self.settings.resample.next_point(self.step)
        if until is not None and until >= self.settings.horizon:
            until = None
        pause = self._next_pause(until)
        self._config = config
        moving = [particle.can_step for particle in self.particles]
        tasks = {
            self.runner.advance(particle, until if pause is None else pause, self._stop, config): particle
            for particle in self.particles
            if particle.can_step
        }
        try:
            async with self.deadline.cutting():
                await self._wait(tasks, config)
        finally:
            await stop([*tasks])
        if self.deadline.passed or self.decided or self.out_of_budget:
            self._archive_and_maybe_stop()
            self._forget_values(moving)
            return
        causes = self._check_quorum()
        if pause is not None and not self.concluded and not self.at_door:
            self.last_pause, self.at_pause = pause, True
            return
        self.step = max(particle.steps for particle in self.particles) if until is None or self.at_door else until
        self.last_pause = self.step
        self._note_failures(causes)

    @property
    def everyone(self) -> list[Particle]:
        """The live slots, then the retired particles."""
        return [*self.particles, *(retired.particle for retired in self.retired)]

    @property
    def log_weights(self) -> FloatArray:
        """`[M]` absolute log-weights of `everyone`."""
        return np.array([*self.weights.log_weights, *(retired.log_weight for retired in self.retired)])

    @property
    def concluded(self) -> bool:
        """Whether no particle can make another step."""
        return self.cut_short or not any(particle.running for particle in self.particles)

    @property
    def next_node(self) -> str:
        """The node of the graph that follows a weighing."""
        if self.concluded:
            return "finalize"
        if self.at_door:
            return "commit"
        return "resample" if self.due else "propagate"

    @property
    def at_door(self) -> bool:
        """Whether a particle waits before a commit call or at a question, and no particle can go on without it."""
        waiting = any(particle.running and particle.held for particle in self.particles)
        return waiting and not self.cut_short and not any(particle.can_step for particle in self.particles)

    @property
    def cut_short(self) -> bool:
        """Whether the run ended with unfinished particles."""
        return self.stopped_by is not None

    @property
    def stopped_by(self) -> str | None:
        """What ended the run before all particles had ended, as in `Run.stopped_by`."""
        if self.out_of_budget:
            return "budget"
        if self.deadline.passed:
            return self.deadline.of
        if self.decided:
            return "decided"
        return "stop_at" if self.stopped else None

    @property
    def out_of_budget(self) -> bool:
        """Whether the budget ended the run."""
        return self.budget is not None and self.budget.exhausted

    @property
    def cancelled_within_steps(self) -> bool:
        """Whether some agents were cancelled in the middle of a step."""
        return self.cut_short and (self.stopped_by != "stop_at" or self.budget is not None)

    @property
    def stopped(self) -> bool:
        """Whether the run ended early because `stop_at` was reached."""
        return self._stop.is_set()

    def stop(self) -> None:
        """End the run: no particle makes another step."""
        self._stop.set()

    @property
    def log_evidence(self) -> float:
        """Log Z; NaN if particles are unfinished or have no value at their end, or after a second round."""
        unknown = self.cut_short or self.answer is not None or self.n_earlier > 0 or not self.known.all()
        return float("nan") if unknown else float(smc.log_evidence(self.weights))

    async def weigh(self) -> None:
        """Weigh the particles in their current states, and decide whether to resample them."""
        if self.decided:
            return
        if not self.deadline.passed:
            async with self.deadline.cutting():
                await self._weigh_within_budget()
        if self.deadline.passed or self.out_of_budget:
            return
        # A resampling draws from these particles; "keep" includes the finished ones.
        self._stop_if_decided()
        drawn = np.full(len(self.particles), True) if self.settings.finished == "keep" else ~self._retirable()
        triggered = self.settings.resample.triggered(self.step, self.weights.log_weights, drawn)
        self.due = not self.concluded and bool(triggered)
        self.history.append(
            WeighingPoint(self.step, self.values.copy(), self.weights.log_weights.copy(), self.ess, None)
        )
        self.emit({"type": "amc.weigh", "step": self.step, "values": self.values.tolist(),
                   "log_weights": self.weights.log_weights.tolist(), "ess": self.history[-1].ess})  # fmt: skip

    async def resample(self) -> None:
        """Resample: discard light particles, fork heavy ones, and retire finished ones."""
        self.compare_twins()
        before = self.weights
        after, info = smc.resample(
            self.rng,
            before,
            self._retirable(),
            scheme=self.settings.scheme,
            mode=self.settings.finished,
            n_offspring=self._next_size(),
        )
        if not info.resampled:
            self.weights = after
            return
        ancestors = info.ancestors
        slots = tuple(np.flatnonzero(info.retired).tolist())
        retired = [self._retire(slot) for slot in slots]
        async with self.deadline.cutting():
            await self._continue_from(ancestors, retired)
        if self.deadline.passed:
            return
        self.weights, self.values = after, self.values[ancestors]
        self.history[-1] = replace(self.history[-1], ancestors=ancestors.copy(), retired=slots)
        self.emit({"type": "amc.resample", "step": self.step, "ancestors": ancestors.tolist(),
                   "retired": list(slots)})  # fmt: skip

    async def begin_again(self) -> bool:
        """Start a round of new particles if all have ended and an adaptive run is undecided; return whether it did."""
        earlier = self.n_earlier + len(self.particles)
        if self._rule is None or self.recruit is None or self.cut_short or self.chosen_past:
            return False  # New particles would not have lived through what the chosen particle did.
        standing = self.standing()
        n_new = self._rule.next_round(standing, earlier)
        if not n_new:
            return False
        self.compare_twins()
        async with self.deadline.cutting():
            recruits = await self.recruit(n_new, earlier)
        if self.deadline.passed:
            return False
        self.notes.append(
            f"undecided after {earlier} particles (another would overtake the answer with probability up to "
            f"{standing.overtaking:.2g}): {n_new} more were started, and log Z is not known"
        )
        retired = [*self.retired, *(self._retire(slot) for slot in range(len(self.particles)))]
        self.weights, scale = smc.begin_again(self.weights, earlier, n_new)
        self.retired = [replace(each, log_weight=each.log_weight + scale) for each in retired]
        self.particles, self.values, self.known = recruits, np.full(n_new, np.nan), np.ones(n_new, dtype=np.bool_)
        self.step = self.last_pause = 0
        self.n_earlier = earlier
        self.twins.begin_again()
        return True

    def standing(self) -> Standing:
        """Return the leading answer of an adaptive run; without a leader if the number of particles is fixed."""
        if self._rule is None:
            return UNDECIDED
        values = np.array([*self.values, *(retired.value for retired in self.retired)])
        return self._rule.standing(self.everyone, values)

    async def continue_alone(self, slot: int) -> None:
        """Continue all slots from one particle, and clear all others: they did not live through its past.

        The weights start again, conditional on this past (`smc.restart`).
        """
        self.compare_twins()
        particle = self.particles[slot]
        cleared = [retired.particle for retired in self.retired]
        if self.archive is not None and all(self.archive is not other for other in self.everyone):
            cleared.append(self.archive)
        self.retired, self.archive = [], None
        ancestors = np.full(len(self.particles), slot)
        await self._continue_from(ancestors, [])
        await asyncio.gather(*(self.runner.discard(other) for other in cleared))
        base = particle.return_ / self.settings.beta if self.settings.rewards_observed else 0.0
        self.weights = smc.restart(len(self.particles), base)
        self.values, self.known = self.values[ancestors], self.known[ancestors]
        self.step = self.last_pause = particle.steps
        self.selected, self.chosen_past, self.n_earlier = None, True, 0
        self.history[-1] = replace(self.history[-1], ancestors=ancestors)

    def compare_twins(self) -> None:
        """Compare the newest steps of the particles that have not failed."""
        alive = [particle for particle in self.particles if particle.error is None]
        self.twins.compare([self.runner.trajectory_of(particle) for particle in alive])

    async def pause(self) -> None:
        """Stop the agents of all running particles at checkpoints from which they go on."""
        running = [particle for particle in self.particles if particle.running]
        await asyncio.gather(*(self.runner.save(particle, "saved") for particle in running))

    async def stop_agents(self) -> None:
        """Stop every agent."""
        paused = [particle for particle in self.everyone if particle.stream is not None]
        await asyncio.gather(*(self.runner.stop(particle) for particle in paused))

    async def _continue_from(self, ancestors: IntArray, retired: Sequence[Retired]) -> None:
        """Make slot i continue particle `ancestors[i]`; the first offspring keeps its ancestor's world."""
        old = list(self.particles)
        forks = {slot: old[source] for slot, source in enumerate(ancestors.tolist()) if slot != source}
        parents = {id(parent): parent for parent in forks.values() if parent.running}
        await asyncio.gather(*(self.runner.save(parent) for parent in parents.values()))
        offspring = await asyncio.gather(*(self.runner.fork(parent, slot) for slot, parent in forks.items()))
        children = dict(zip(forks, offspring, strict=True))
        gone = {id(kept.particle) for kept in retired}
        for slot, child in children.items():
            if slot < len(old) and id(old[slot]) in gone and child.segment is not None:
                child.segment.refills = True
        particles = [children[slot] if slot in children else old[slot] for slot in range(len(ancestors))]
        all_retired = [*self.retired, *retired]
        kept = {id(particle) for particle in particles} | {id(kept.particle) for kept in all_retired}
        kept.add(id(self.archive))  # It may become the answer, with its world.
        await asyncio.gather(*(self.runner.discard(particle) for particle in old if id(particle) not in kept))
        self.particles, self.retired = particles, all_retired

    def _next_pause(self, until: int | None) -> int | None:
        """Return the step of the next durable point before the weighing point `until`; None: there is none."""
        if self.durable is None or self.settings.durable_every is None:
            return None
        pause = self.last_pause + self.settings.durable_every
        return pause if until is None or pause < until else None

    def _retire(self, slot: int) -> Retired:
        weights = self.weights
        return Retired(
            self.particles[slot],
            float(weights.log_weights[slot]),
            float(weights.log_weights_since[slot]),
            float(self.values[slot]),
        )

    async def _wait(self, tasks: Tasks, config: RunnableConfig) -> None:
        """Wait for the particles' tasks, as far as the budget allows."""
        if self.budget is not None:
            await self.budget.wait(tasks, self.particles, self.weights.log_weights, self.runner, config, self._ends_now)
            return
        for finished in asyncio.as_completed(tasks):
            await finished
            self._ends_now()
            if self.decided:
                return

    def _ends_now(self) -> bool:
        """Consider the particles that have ended, and return whether the run ends early."""
        self._archive_and_maybe_stop()
        if self._rule is not None and self._rule.decides_at_any_end:
            self._stop_if_decided()
        return self.stopped

    async def _weigh_within_budget(self) -> None:
        """Weigh all particles; where that does not fit the budget, finish one of them first, and try again."""
        everyone, budget = [*range(len(self.particles))], self.budget
        if budget is None:
            return await self._weigh(everyone)
        try:
            if not budget.exhausted:
                return await self._weigh(everyone)
        except BudgetExhausted:
            if await self._finish_best(budget):
                return await self._weigh_within_budget()
        budget.spend_reserve()
        try:
            await self._weigh([slot for slot in everyone if self._awaits_value(slot)])
        except BudgetExhausted:
            self.notes.append("the budget did not suffice for a last weighing of the finished particles")

    def _awaits_value(self, slot: int) -> bool:
        particle = self.particles[slot]
        return particle.finished and particle.error is None and bool(np.isnan(self.values[slot]))

    async def _finish_best(self, budget: RunBudget) -> bool:
        return await budget.finish_best({}, self.particles, self.weights.log_weights, self.runner, self._config)

    async def _weigh(self, slots: list[int]) -> None:
        """Update the values and weights of some slots; the others keep their weights."""
        if not slots:
            return
        with nullcontext() if self.budget is None else self.budget.weighing():
            valuation = await evaluate(
                [self.particles[slot] for slot in slots], self.critic, self.runner, self.settings, self.meter
            )
        if valuation.error is not None:
            self.notes.append(f"step {self.step}: the critic failed and the weights were kept ({valuation.error})")
        potentials = np.full(len(self.particles), np.nan)
        self.values[slots], potentials[slots] = valuation.values, valuation.potentials
        self.known = ~np.isnan(potentials)
        self.weights = smc.weigh(self.weights, potentials, self.known)

    def _retirable(self) -> BoolArray:
        """`[N]` finished particles whose final potential is known."""
        return np.array([particle.finished for particle in self.particles]) & self.known

    @property
    def ess(self) -> float:
        """Effective sample size of retired and live particles together."""
        log_weights = self.log_weights
        return float(smc.ess(log_weights)) if np.isfinite(log_weights).any() else 0.0

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
        if self.settings.stop_at is not None and best >= self.settings.stop_at and not self.stopped:
            self.stop()
            self.notes.append(
                f"stopped at return {best:g} >= stop_at: the other particles are unfinished and log Z is not known"
            )

    def _stop_if_decided(self) -> None:
        """Stop an adaptive run whose answer another particle is unlikely to overtake."""
        running = sum(particle.running for particle in self.particles)
        if self._rule is None or self.cut_short or not running:
            return
        overtaking = self.standing().overtaking
        if self._rule.adaptive.decides(overtaking):
            self.decided = True
            self._stop.set()
            self.notes.append(
                f"stopped early: another particle would overtake the answer with probability at most {overtaking:.2g}; "
                f"{running} unfinished particles were cancelled and log Z is not known"
            )

    def _forget_values(self, moving: Sequence[bool]) -> None:
        """Replace the values of an earlier step, where the run ends without another weighing."""
        self.values[moving] = np.nan
        if self.decided:
            for slot, particle in enumerate(self.particles):
                if moving[slot] and particle.finished:
                    self.values[slot] = particle.return_ if self.settings.rewards_observed else 0.0

    def _next_size(self) -> int:
        if self._rule is None:
            return len(self.particles)
        return self._rule.next_size(self.particles, self.values, self.weights.log_weights, self.n_earlier)

    def _check_quorum(self) -> list[Exception]:
        """Return the failures of particles, unless too many failed."""
        causes = [particle.error for particle in self.particles if particle.error is not None]
        alive = len(self.particles) - len(causes)
        least = self.settings.least_alive(len(self.particles))
        if alive < least:
            raise QuorumLost(alive, least, causes) from cause_of(causes[0])
        return causes

    def _note_failures(self, causes: Sequence[Exception]) -> None:
        if causes:
            note = (
                f"{len(causes)} of {len(self.particles)} particles failed: log Z refers to runs that do not fail "
                f"({brief_causes(causes)})"
            )
            if note not in self.notes:
                self.notes.append(note)
