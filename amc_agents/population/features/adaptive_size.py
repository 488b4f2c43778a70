"""`n_particles=Adaptive(...)`: how likely another particle overtakes the answer, and how many to add.

If the return of a success is declared (`success_reward`), the rule uses probabilities of success: the critic's, and 0
or 1 for particles whose reward was seen. Otherwise a value is no probability, and the rule counts how many finished
particles agree with the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from amc_agents import smc
from amc_agents.critics.spec import UniformCritic
from amc_agents.population.feature import Feature, Weigh
from amc_agents.population.particle import Particle
from amc_agents.population.settings import Settings
from amc_agents.population.system import ParticleSystem
from amc_agents.smc import Adaptive, normalised, overtaking_by_agreement, overtaking_by_value
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, FloatArray, Trajectory


class Standing(NamedTuple):
    """The answer that would be picked now."""

    overtaking: float
    """Probability that another particle would overtake it."""
    leaders: tuple[int, ...] = ()
    """Indices of the particles that have it; empty if no finished particle can be picked yet."""


UNDECIDED = Standing(1.0)


@dataclass(frozen=True)
class Rule:
    """Decides about the particles of one run.

    "weight" and "sample" pick from all weighted particles: such a run grows, but is never decided early and has a
    single round, so its log Z is always known.
    """

    adaptive: Adaptive
    settings: Settings
    critic: Critic
    trajectory_of: Callable[[Particle], Trajectory]

    @property
    def decides_at_any_end(self) -> bool:
        """Whether the end of a particle can decide; otherwise the critic must weigh it first."""
        return self.settings.rewards_observed or not self._predicts

    def standing(self, particles: Sequence[Particle], values: FloatArray) -> Standing:
        """Return the leading answer and the probability that another particle would overtake it.

        Args:
            particles: `[M]` all particles of the run.
            values: `[M]` values at the last weighing; NaN if unknown.
        """
        if self.settings.pick not in ("return", "value"):
            return UNDECIDED
        scores = self._scores(particles, values)
        ended = [
            index
            for index, particle in enumerate(particles)
            if particle.finished and particle.error is None and np.isfinite(scores[index])
        ]
        if not ended:
            return UNDECIDED
        best = max(scores[index] for index in ended)
        leaders = [index for index in ended if scores[index] == best]
        if self._success is None:
            return self._agreement(particles, ended, leaders)
        running = [index for index, particle in enumerate(particles) if particle.running]
        # Without running particles, the others are those of another round.
        success = float(np.max(self._probabilities(values[running]))) if running else float("nan")
        return Standing(overtaking_by_value(self._probability(best), success, self.adaptive.most), tuple(leaders))

    def next_round(self, standing: Standing, earlier: int) -> int:
        """Return the number of new particles to start after all others have ended; 0: the run has ended.

        Args:
            standing: the answer.
            earlier: number of particles so far.
        """
        if self.settings.pick not in ("return", "value") or self.adaptive.decides(standing.overtaking):
            return 0
        return self.adaptive.next_round(earlier)

    def next_size(
        self, particles: Sequence[Particle], values: FloatArray, log_weights: FloatArray, earlier: int
    ) -> int:
        """Return the number of offspring to draw from the live slots.

        Args:
            particles: `[N]` the live slots.
            values: `[N]` their values.
            log_weights: `[N]`.
            earlier: number of particles of earlier rounds.
        """
        running = np.array([particle.running for particle in particles]) & np.isfinite(log_weights)
        if self._success is None or not running.any():
            return self.adaptive.next_size(len(particles), float("nan"), earlier)
        success = normalised(log_weights[running]) @ self._probabilities(values[running])
        return self.adaptive.next_size(len(particles), float(success), earlier)

    @property
    def _predicts(self) -> bool:
        return not isinstance(self.critic, UniformCritic)

    @property
    def _success(self) -> float | None:
        """The return of a success, if probabilities of success are known."""
        usable = self._predicts or self.settings.rewards_observed
        return self.settings.success_reward if usable else None

    def _scores(self, particles: Sequence[Particle], values: FloatArray) -> FloatArray:
        """`[M]` the criterion of the pick."""
        if self.settings.rewards_observed:
            return np.array([particle.return_ for particle in particles])
        return values if self._predicts else np.zeros(len(particles))

    def _probability(self, value: float) -> float:
        assert self._success is not None
        return float(np.clip(value / self._success, 0.0, 1.0))

    def _probabilities(self, values: FloatArray) -> FloatArray:
        """Probabilities of success of unfinished particles; NaN without a critic."""
        if not self._predicts:
            return np.full(len(values), np.nan)
        return np.array([self._probability(value) for value in values])

    def _agreement(self, particles: Sequence[Particle], ended: list[int], leaders: list[int]) -> Standing:
        answers = {index: self._answer(particles[index]) for index in ended}
        # Resampled copies of a finished particle share its reader, and have a single vote.
        voters = {id(particles[index].reader or particles[index]): answers[index] for index in ended}
        votes = Counter(voters.values())
        answer = max((answers[index] for index in leaders), key=lambda which: votes[which])
        rivals = max((count for which, count in votes.items() if which != answer), default=0)
        having = tuple(index for index in leaders if answers[index] == answer)
        return Standing(overtaking_by_agreement(votes[answer], rivals), having)

    def _answer(self, particle: Particle) -> tuple[str, float]:
        """The text of the last action, and the return if rewards are seen."""
        steps = self.trajectory_of(particle).steps
        text = " ".join(steps[-1].action.split()).casefold() if steps else ""
        return text, particle.return_ if self.settings.rewards_observed else 0.0


class AdaptiveSize(Feature):
    """`n_particles=Adaptive(...)`: adds particles while the answer is undecided, and ends the run when it is decided.

    Args:
        recruit: creates new particles, which start from the agent's input: (their number, number of earlier particles).
    """

    name = "adaptive"
    abrupt = True

    def __init__(self, recruit: Callable[[int, int], Awaitable[list[Particle]]]) -> None:
        self._recruit = recruit
        self._decided = False
        self._n_earlier = 0
        """Number of particles of the earlier rounds."""
        self._ended: list[Particle] = []
        """The particles that have ended since the last weighing."""

    async def on_start(self, system: ParticleSystem) -> None:
        """Follow the rule of the settings."""
        adaptive = system.settings.adaptive
        assert adaptive is not None
        self._rule = Rule(adaptive, system.settings, system.target.critic, system.runner.trajectory_of)

    def on_step(self, system: ParticleSystem, particle: Particle) -> None:
        """Decide at the end of a particle, if its value is known without the critic."""
        if particle.finished:
            self._ended.append(particle)
        if self._rule.decides_at_any_end:
            self.on_weighed(system, ended=self._ended)

    def on_weighed(self, system: ParticleSystem, ended: Sequence[Particle] = ()) -> None:
        """Stop a run whose answer another particle is unlikely to overtake."""
        self._ended = [*ended]
        running = sum(particle.running for particle in system.particles)
        if system.stop is not None or not running:
            return
        overtaking = self._standing(system).overtaking
        if self._rule.adaptive.decides(overtaking):
            self._decided = True
            system.note(
                f"stopped early: another particle would overtake the answer with probability at most {overtaking:.2g}; "
                f"{running} unfinished particles were cancelled and log Z is not known"
            )

    def stops(self, system: ParticleSystem) -> str | None:
        """Return "decided" once the answer is."""
        return "decided" if self._decided else None

    async def on_cut(self, system: ParticleSystem, weigh: Weigh) -> None:
        """Value the particles that have ended since the last weighing by their returns."""
        if self._decided:
            for particle in self._ended:
                system.values[particle.index] = particle.return_ if system.settings.rewards_observed else 0.0

    def offspring(self, system: ParticleSystem) -> int:
        """Return the number of offspring of the next resampling."""
        return self._rule.next_size(system.particles, system.values, system.weights.log_weights, self._n_earlier)

    def may_recruit(self, system: ParticleSystem) -> bool:
        """Whether a round of new particles may start, should the answer be undecided when all have ended."""
        # New particles would not have lived through what a chosen particle did.
        if system.stop is not None or system.is_conditional:
            return False
        return self._rule.next_round(UNDECIDED, self._n_earlier + len(system.particles)) > 0

    async def next(self, system: ParticleSystem, then: str) -> str | None:
        """Start a round of new particles if all have ended and the answer is undecided."""
        earlier = self._n_earlier + len(system.particles)
        if then != "conclude" or not self.may_recruit(system):
            return None
        standing = self._standing(system)
        n_new = self._rule.next_round(standing, earlier)
        if not n_new:
            return None
        for before_offspring in system.features.before_offspring:
            before_offspring(system)
        recruits: list[Particle] = []
        async with system.features.within("recruit", system):
            recruits = await self._recruit(n_new, earlier)
        if not recruits:  # The time was over.
            return None
        system.note(
            f"undecided after {earlier} particles (another would overtake the answer with probability up to "
            f"{standing.overtaking:.2g}): {n_new} more were started, and log Z is not known"
        )
        self._begin_round(system, recruits, earlier)
        return "propagate"

    def _begin_round(self, system: ParticleSystem, recruits: list[Particle], earlier: int) -> None:
        n_new = len(recruits)
        retired = [*system.retired, *(system.retire(slot) for slot in range(len(system.particles)))]
        system.weights, scale = smc.begin_again(system.weights, earlier, n_new)
        system.retired = [replace(each, log_weight=each.log_weight + scale) for each in retired]
        system.particles, system.values, system.known = recruits, np.full(n_new, np.nan), np.ones(n_new, dtype=np.bool_)
        system.step, self._n_earlier = 0, earlier
        for on_recruited in system.features.on_recruited:
            on_recruited(system, earlier)

    def candidates(self, system: ParticleSystem) -> BoolArray | None:
        """Return the particles that have the leading answer; None: there is none."""
        leaders = self._standing(system).leaders
        return np.isin(np.arange(len(system.everyone)), leaders) if leaders else None

    def hides_evidence(self, system: ParticleSystem) -> bool:
        """Whether there was a second round."""
        return self._n_earlier > 0

    def record(self, system: ParticleSystem) -> int:
        """Return the number of particles of earlier rounds."""
        return self._n_earlier

    def restore(self, system: ParticleSystem, recorded: int) -> None:
        """Take over the number of particles of earlier rounds."""
        self._n_earlier = recorded

    def _standing(self, system: ParticleSystem) -> Standing:
        return self._rule.standing(system.everyone, system.all_values)
