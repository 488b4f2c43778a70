"""A population of particles during a run, and its state between two nodes of the outer graph.

`propagation`, `weighing` and `resampling` change it (AMC, Algorithm 1); the arithmetic is in `amc_agents.smc`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from langchain_core.runnables import RunnableConfig

from amc_agents import smc
from amc_agents.commits import Commit
from amc_agents.population.features.adaptive_size import UNDECIDED, Rule, Standing
from amc_agents.population.features.search_notes import Twins
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import ParticleRunner
from amc_agents.population.run_budget import RunBudget
from amc_agents.population.settings import Settings
from amc_agents.population.time_limits import Deadline
from amc_agents.run import WeighingPoint
from amc_agents.runtime.tracing import RunSpan
from amc_agents.runtime.world import Worlds
from amc_agents.settings import Select
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, FloatArray
from amc_agents.usage import Meter

Emit = Callable[[dict[str, Any]], None]
"""Receives the events of a run as they happen."""
Recruit = Callable[[int, int], Awaitable[list[Particle]]]
"""Creates new particles, which start from the agent's input: (their number, number of earlier particles)."""


class Durable(Protocol):
    """Makes a population survive its process."""

    @property
    def journals(self) -> bool:
        """Whether a commit call can be journaled so that no other caller repeats it."""
        ...

    async def forget_commits(self) -> None:
        """Let the thread's next input start a new run, although this one made commit calls."""
        ...

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
        beta = self.settings.beta
        self.beta = None if isinstance(beta, str) else beta
        """The temperature of the target; None: not chosen yet, so all weights are equal."""
        self.beta_step: int | None = None
        """The step at which the particles' own values chose it; None: they did not."""
        self.known = np.ones(self.settings.start_size, dtype=np.bool_)
        """`[N]` False where the last potential is not known."""
        self.stopping = asyncio.Event()
        """Set when no particle may make another step."""
        self.config: RunnableConfig = {}
        """The config of the last propagation, for particles that go on outside of one."""
        adaptive = self.settings.adaptive
        self.rule = None if adaptive is None else Rule(adaptive, self.settings, self.critic, self.runner.trajectory_of)

    @property
    def span(self) -> RunSpan:
        """The span of the run."""
        return self.runner.streams.span

    @property
    def everyone(self) -> list[Particle]:
        """The live slots, then the retired particles."""
        return [*self.particles, *(retired.particle for retired in self.retired)]

    @property
    def candidates(self) -> list[Particle]:
        """The particles that can still become the answer, or its ancestors; empty if new ones may still start."""
        if self.can_begin_again:
            return []
        everyone = zip(self.everyone, np.isfinite(self.log_weights), strict=True)
        candidates = [particle for particle, weighted in everyone if weighted and particle.error is None]
        archived = self.archive is not None and all(self.archive is not particle for particle in candidates)
        return [*candidates, self.archive] if self.archive is not None and archived else candidates

    @property
    def can_begin_again(self) -> bool:
        """Whether an adaptive run may start a round of new particles, should it be undecided when all have ended."""
        # New particles would not have lived through what a chosen particle did.
        if self.rule is None or self.recruit is None or self.cut_short or self.chosen_past:
            return False
        return self.rule.next_round(UNDECIDED, self.n_earlier + len(self.particles)) > 0

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
        return self.stopping.is_set()

    def stop(self) -> None:
        """End the run: no particle makes another step."""
        self.stopping.set()

    @property
    def log_evidence(self) -> float:
        """Log Z; NaN if particles are unfinished or have no value at their end, or after a second round.

        It is also NaN for a beta that depends on the particles, whose evidence has no expectation to estimate.
        """
        unknown = self.cut_short or self.answer is not None or self.n_earlier > 0 or not self.known.all()
        return float("nan") if unknown or not self.beta_is_given else float(smc.log_evidence(self.weights))

    @property
    def beta_is_given(self) -> bool:
        """Whether beta is known and does not depend on the particles."""
        return self.beta is not None and self.beta_step is None

    @property
    def pick(self) -> Select:
        """The criterion of the answer; without a beta, the largest value has the largest weight for any beta."""
        pick = self.settings.pick
        return "value" if pick == "weight" and self.beta is None else pick

    def standing(self) -> Standing:
        """Return the leading answer of an adaptive run; without a leader if the number of particles is fixed."""
        if self.rule is None:
            return UNDECIDED
        values = np.array([*self.values, *(retired.value for retired in self.retired)])
        return self.rule.standing(self.everyone, values)

    def compare_twins(self) -> None:
        """Compare the newest steps of the particles that have not failed."""
        alive = [particle for particle in self.particles if particle.error is None]
        self.twins.compare([self.runner.trajectory_of(particle) for particle in alive])

    async def pause(self) -> None:
        """Stop the agents of all running particles at checkpoints from which they go on."""
        running = [particle for particle in self.particles if particle.running]
        await asyncio.gather(*(self.runner.save(particle, "saved") for particle in running))

    async def stop_agents(self) -> None:
        """Stop every agent, and count the requests that it had in flight."""
        paused = [particle for particle in self.everyone if particle.stream is not None]
        await asyncio.gather(*(self.runner.stop(particle) for particle in paused))
        self.runner.ledger.count_abandoned()

    def retire(self, slot: int) -> Retired:
        """Return the finished particle of a slot with its current weights and value."""
        weights = self.weights
        return Retired(
            self.particles[slot],
            float(weights.log_weights[slot]),
            float(weights.log_weights_since[slot]),
            float(self.values[slot]),
        )

    def retirable(self) -> BoolArray:
        """`[N]` finished particles whose final potential is known."""
        return np.array([particle.finished for particle in self.particles]) & self.known

    @property
    def ess(self) -> float:
        """Effective sample size of retired and live particles together."""
        log_weights = self.log_weights
        return float(smc.ess(log_weights)) if np.isfinite(log_weights).any() else 0.0
