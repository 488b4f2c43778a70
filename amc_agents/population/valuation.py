"""Evaluate particles: call the critic, and turn its values into potentials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents import smc
from amc_agents.concurrency.gather import at_most
from amc_agents.concurrency.rate_gate import gated
from amc_agents.critics.uses import nature_of
from amc_agents.critics.validation import checked_values, failing_as_critic_error
from amc_agents.errors import CriticError, TimeLimitExceeded, UnreadableAnswer
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import ParticleRunner
from amc_agents.population.settings import Settings
from amc_agents.population.time_limits import within
from amc_agents.runtime.budget_keeper import paying_from
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, FloatArray
from amc_agents.usage import Meter, metering

_RESOLUTION = 0.005
"""Share of the largest prediction below which a difference is noise. A value model's answer moves by up to that much
with the number format and the other requests in its batch (the tolerance with which a served model is accepted)."""
_DIGIT = 0.01
"""Share of a judge's range below which a difference is noise: judges answer with two digits."""
_ROUNDING = 1e-9
"""Share of the largest return below which a difference between sums of rewards is rounding."""


@dataclass(frozen=True)
class Valuation:
    """What is known of N particles at a weighing point."""

    returns: FloatArray
    """`[N]` the return so far; 0 in a run without rewards."""
    future: FloatArray
    """`[N]` the critic's prediction, 0 where it was not asked; NaN where it failed."""
    asked: BoolArray
    """`[N]` True where the critic was asked."""
    failed: BoolArray
    """`[N]` True for failed particles."""
    error: CriticError | None
    """The critic's failure, if `on_critic_error` ignores it, or answers of a judge that could not be read."""

    @property
    def values(self) -> FloatArray:
        """`[N]` as `WeighingPoint.values`."""
        return np.where(self.failed, np.nan, self.returns + self.future)

    def potentials(self, beta: float | None, success_reward: float | None) -> FloatArray:
        """`[N]` phi_t; -inf for failed particles, NaN where the critic failed. Without a beta, all others are alike.

        Where only some answers could not be read, these particles get the mean prediction of the others: with no gain
        at all beside others that gain v / beta, they would be discarded.
        """
        future, unread = self.future, self.asked & np.isnan(self.future)
        if isinstance(self.error, UnreadableAnswer) and (self.asked & ~unread).any():
            future = np.where(unread, self.future[self.asked & ~unread].mean(), self.future)
        alike = np.where(np.isnan(future), np.nan, 0.0)
        phi = alike if beta is None else smc.potentials(self.returns, future, beta, success_reward)
        return np.where(self.failed, -np.inf, phi)

    def halving_beta(self, among: BoolArray, critic: Critic, success_reward: float | None) -> float | None:
        """Return the beta that halves the effective sample size of some particles; None: they cannot be told apart.

        Args:
            among: `[N]` the particles, of which those count that have a value.
            critic: what predicted `future`, and how finely: see `_RESOLUTION` and `_DIGIT`.
            success_reward: of the settings.
        """
        counted = among & np.isfinite(self.values)
        returns, future = self.returns[counted], self.future[counted]
        resolution = max(
            _RESOLUTION * float(np.max(np.abs(future), initial=0.0)),
            _ROUNDING * float(np.max(np.abs(returns), initial=0.0)),
        )
        if nature_of(critic) == "judge":
            low, high = critic.returns  # type: ignore[attr-defined]
            resolution = max(resolution, _DIGIT * (high - low))
        return smc.halving_beta(returns, future, resolution, success_reward)


async def evaluate(
    particles: Sequence[Particle], critic: Critic, runner: ParticleRunner, settings: Settings, meter: Meter
) -> Valuation:
    """Ask the critic for the values of particles.

    With rewards, the critic predicts the future return f, which is 0 for ended particles. Without rewards, it predicts
    the whole return, for ended particles too (see `smc.potentials`).

    Raises:
        CriticError: the critic failed, and `on_critic_error` is "raise".
    """
    observed = settings.rewards_observed
    failed = np.array([particle.error is not None for particle in particles])
    asked = np.array([particle.error is None and (not observed or not particle.ended) for particle in particles])
    open_slots = np.flatnonzero(asked).tolist()
    returns = np.array([particle.return_ if observed else 0.0 for particle in particles])
    future = np.zeros(len(particles))
    error: CriticError | None = None
    if open_slots:
        try:
            chosen = [particles[slot] for slot in open_slots]
            future[open_slots], error = await _predict(chosen, critic, runner, settings, meter)
        except CriticError as raised:
            if settings.on_critic_error == "raise":
                raise
            future[open_slots], error = np.nan, raised
    return Valuation(returns, future, asked, failed, error)


async def _predict(
    particles: Sequence[Particle], critic: Critic, runner: ParticleRunner, settings: Settings, meter: Meter
) -> tuple[FloatArray, UnreadableAnswer | None]:
    """Return the critic's prediction `[len(particles)]`, and the error if some of it is NaN.

    It predicts the future return, or without rewards the whole return.
    """
    trajectories = [runner.trajectory_of(particle) for particle in particles]
    with (
        at_most(runner.streams.max_concurrency),
        gated(runner.gate),
        metering(meter),
        paying_from(runner.purse),
        failing_as_critic_error(f"critic {settings.critic}"),
    ):
        try:
            answer = await within(
                settings.step_timeout, critic.values(trajectories), "the critic took longer than step_timeout"
            )
            values, unread = checked_values(answer, len(particles), settings.critic), None
        except TimeLimitExceeded as error:
            raise CriticError(str(error)) from error
        except UnreadableAnswer as error:
            values, unread = error.values, error
    if settings.rewards_observed and getattr(critic, "predicts", "future") == "return":
        values = values - np.array([particle.return_ for particle in particles])
    return values, unread
