"""Notes on runs whose search could not help: the cause, and the setting to change."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from amc_agents import smc
from amc_agents.population.conclusion import warn_once
from amc_agents.population.feature import Feature
from amc_agents.population.particle import Particle
from amc_agents.population.settings import Settings
from amc_agents.population.system import ParticleSystem
from amc_agents.run import Run, WeighingPoint
from amc_agents.smc import EssBelow, EveryStep, Never
from amc_agents.types import Trajectory

EVEN = 0.95
"""Weights count as equal if the effective sample size exceeds this share of the particles."""


def reward_notes(returns: Sequence[float], settings: Settings) -> list[str]:
    """Return a note if the run has rewards and every return is 0.

    Args:
        returns: of all particles.
        settings: of the run.
    """
    if not settings.rewards_observed or any(returns):
        return []
    return [
        "every return was 0, so rewards could not tell particles apart: if the worlds have no rewards, pass "
        "rewards=False or return a Forkable from environment=; the run then uses the critic's values only"
    ]


def search_notes(
    history: Sequence[WeighingPoint], settings: Settings, beta: float | None, *, stopped: bool
) -> list[str]:
    """Return notes if the weights hardly differed at every weighing point.

    `Never()` does not search; only its final selection can fail.

    Args:
        history: all weighing points of the run; the last is its end.
        settings: of the run.
        beta: of the run; None: no weighing could choose one.
        stopped: whether the run ended early, by `stop_at` or `run_timeout`.
    """
    if settings.largest_size == 1 or not history:
        return []
    *before, end = history
    notes = []
    if settings.resample != Never():
        if not before and not stopped:
            earlier = "" if settings.resample.next_point(0) == 1 else ": weigh at earlier steps"
            notes.append(
                f"the search did nothing: every particle ended before the first weighing point of {settings.resample}, "
                f"so the run was Best-of-N{earlier}"
            )
        elif before and not any(_valued(point) for point in before):
            notes.append(
                f"the search did nothing: the critic ({settings.critic}) gave no value at any weighing point, so the "
                "run was Best-of-N: the run's notes say why"
            )
        elif any(_answered(point) for point in before) and all(_evenness(point) > EVEN for point in before):
            notes.append(
                "the search did nothing: the effective sample size stayed above "
                f"{EVEN:.0%} of the particles at every weighing point, so resampling could not tell them apart: "
                f"{_lower(beta, settings)}{_elsewhere(settings)}use a critic that tells states apart "
                f"({settings.critic})"
            )
    alike = all(_evenness(point) > 1 - 1e-9 for point in history)
    if beta is None:  # Weights are equal then, whatever the values are.
        alike = alike and float(np.ptp(end.values[np.isfinite(end.log_weights)])) == 0.0
    if not settings.rewards_observed and _answered(end) and alike:
        notes.append(
            f"the pick is arbitrary: the critic ({settings.critic}) valued all particles alike, and the run saw no "
            "rewards: use a critic that tells finished trajectories apart, or give rewards"
        )
    return notes


def _lower(beta: float | None, settings: Settings) -> str:
    """The advice about beta, which "auto" chooses wherever values differ by more than the critic's resolution."""
    return f"lower beta ({beta:g}), " if beta is not None and settings.beta != "auto" else ""


def _elsewhere(settings: Settings) -> str:
    """The advice about the schedule; nothing if it weighs at every step."""
    at_every_step = isinstance(settings.resample, EveryStep | EssBelow)
    return "" if at_every_step else f"weigh at other steps ({settings.resample}), or "


def _answered(point: WeighingPoint) -> bool:
    """Whether the critic answered; its failure has a note of its own."""
    return not np.isnan(point.values[np.isfinite(point.log_weights)]).any()


def _valued(point: WeighingPoint) -> bool:
    """Whether any particle that has not failed has a value."""
    return bool(np.isfinite(point.values[np.isfinite(point.log_weights)]).any())


def _evenness(point: WeighingPoint) -> float:
    """Effective sample size divided by the number of particles that have not failed, in (0, 1]."""
    alive = point.log_weights[np.isfinite(point.log_weights)]
    return float(smc.ess(alive)) / len(alive) if len(alive) else 1.0


LEAST_REPEATS = 4
"""Minimum number of repeated steps that are not attributed to chance: five particles that agree at one step, or two
that agree at four steps. Two attempts at a short task often agree at one step."""


class SearchNotes(Feature):
    """Compares the steps of the particles during a run, and writes the notes at its end.

    A fork shares its past by reference, so only the steps since the last resampling are compared. Particles are
    identical with a fixed model seed, at temperature 0, or with cached answers.
    """

    name = "search_notes"

    def __init__(self) -> None:
        self._differed = False
        self._n_compared = 0
        self._n_repeats = 0

    def before_offspring(self, system: ParticleSystem) -> None:
        """Compare the newest steps of the particles that have not failed."""
        alive = [particle for particle in system.particles if particle.error is None]
        self._compare([system.runner.trajectory_of(particle) for particle in alive])

    def on_recruited(self, system: ParticleSystem, earlier: int) -> None:
        """Continue with new particles, whose steps count from the first."""
        self._n_compared = 0

    async def on_end(self, system: ParticleSystem, run: Run, winner: Particle) -> Run:
        """Write the notes."""
        self.before_offspring(system)
        settings = system.settings
        notes = self._notes(len(system.particles))
        notes += search_notes(system.history, settings, system.target.beta, stopped=system.stop is not None)
        for note in notes:
            warn_once(note)
        for note in reward_notes([particle.return_ for particle in system.everyone], settings) + notes:
            system.note(note)
        return run

    def record(self, system: ParticleSystem) -> tuple[bool, int, int]:
        """Return the state of the comparison."""
        return self._differed, self._n_compared, self._n_repeats

    def restore(self, system: ParticleSystem, recorded: tuple[bool, int, int]) -> None:
        """Continue the comparison."""
        self._differed, self._n_compared, self._n_repeats = recorded

    def _compare(self, trajectories: Sequence[Trajectory]) -> None:
        if self._differed or not trajectories:
            return
        newest = [
            tuple((step.thought, step.action, step.observation) for step in trajectory.steps[self._n_compared :])
            for trajectory in trajectories
        ]
        self._differed = len(set(newest)) > 1
        self._n_repeats += (len(newest) - 1) * len(newest[0])
        self._n_compared += len(newest[0])

    def _notes(self, n_particles: int) -> list[str]:
        """Return a note if all particles were identical for enough steps."""
        if self._differed or self._n_repeats < LEAST_REPEATS:
            return []
        return [
            f"all {n_particles} particles gave the same answer at each of {self._n_compared} steps: is the model's "
            "temperature 0, its seed fixed, or are its answers cached? Identical particles do not improve the answer"
        ]
