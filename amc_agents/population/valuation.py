"""Evaluate particles: call the critic and turn its values into potentials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents import smc
from amc_agents.concurrency.gather import at_most
from amc_agents.concurrency.rate_gate import gated
from amc_agents.critics.validation import checked_values, failing_as_critic_error
from amc_agents.errors import CriticError, TimeLimitExceeded, UnreadableAnswer
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import ParticleRunner
from amc_agents.population.settings import Settings
from amc_agents.population.time_limits import within
from amc_agents.runtime.budget_keeper import paying_from
from amc_agents.types import Critic, FloatArray
from amc_agents.usage import Meter, metering


@dataclass(frozen=True)
class Valuation:
    """Values and potentials of N particles at a weighing point."""

    values: FloatArray
    """`[N]` as `WeighingPoint.values`."""
    potentials: FloatArray
    """`[N]` phi_t; -inf for failed particles, NaN for particles on which the critic failed."""
    error: CriticError | None
    """The critic's failure, if `on_critic_error` ignores it, or answers of a judge that could not be read."""


async def evaluate(
    particles: Sequence[Particle], critic: Critic, runner: ParticleRunner, settings: Settings, meter: Meter
) -> Valuation:
    """Compute the values and potentials of particles.

    With rewards, the critic predicts the future return f, which is 0 for ended particles. Without rewards, it predicts
    the whole return, for ended particles too (see `smc.potentials`).

    Raises:
        CriticError: the critic failed, and `on_critic_error` is "raise".
    """
    observed = settings.rewards_observed
    failed = np.array([particle.error is not None for particle in particles])
    open_slots = [
        slot for slot, particle in enumerate(particles) if not failed[slot] and (not observed or not particle.ended)
    ]
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
    potentials = smc.potentials(returns, future, settings.beta, settings.success_reward)
    return Valuation(np.where(failed, np.nan, returns + future), np.where(failed, -np.inf, potentials), error)


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
