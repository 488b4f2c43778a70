"""Weigh particles: the critic's values as potentials, and the choice of beta (AMC, eq. 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from amc_agents import smc
from amc_agents.concurrency.gather import at_most, gated
from amc_agents.critics.adapting import checked_values, failing_as_critic_error
from amc_agents.critics.uses import nature_of, require_beta
from amc_agents.errors import CriticError, TimeLimitExceeded, UnreadableAnswer
from amc_agents.population.feature import Weigh
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import within
from amc_agents.population.system import ParticleSystem
from amc_agents.smc.weights import BoolArray
from amc_agents.types import Critic, FloatArray
from amc_agents.usage import metering

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
    """`[N]` True for failed and dropped particles."""
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


async def weigh_all(system: ParticleSystem, weigh: Weigh) -> bool:
    """Weigh all particles."""
    await weigh(range(len(system.particles)))
    return True


async def weigh_slots(system: ParticleSystem, slots: Iterable[int]) -> None:
    """Update the values and weights of the particles in some slots; the others keep their weights."""
    slots, size, settings = [*slots], len(system.particles), system.settings
    if not slots:
        return
    valuation = await evaluate(system, [system.particles[slot] for slot in slots])
    if valuation.error is not None:
        unread = isinstance(valuation.error, UnreadableAnswer)
        failed = "the critic failed and the weights were kept"
        what = "unknown values count as the mean of the others" if unread else failed
        system.note(f"step {system.step}: {what} ({valuation.error})")
    if settings.beta == "auto" and len(slots) == size:
        _choose_beta(system, valuation)
    potentials = np.full(size, np.nan)
    system.values[slots] = valuation.values
    potentials[slots] = valuation.potentials(system.target.beta, settings.success_reward)
    system.known = np.full(size, False)
    system.known[slots] = ~np.isnan(valuation.future)
    system.weights = smc.weigh(system.weights, potentials, ~np.isnan(potentials))


async def evaluate(system: ParticleSystem, particles: Sequence[Particle]) -> Valuation:
    """Ask the critic for the values of particles.

    With rewards, the critic predicts the future return f, which is 0 for ended particles. Without rewards, it predicts
    the whole return, for ended particles too (see `smc.weights`).

    Raises:
        CriticError: the critic failed, and `on_critic_error` is "raise".
    """
    observed = system.settings.rewards_observed
    failed = np.array([particle.lost for particle in particles])
    asked = np.array([not particle.lost and (not observed or not particle.ended) for particle in particles])
    open_slots = np.flatnonzero(asked).tolist()
    returns = np.array([particle.return_ if observed else 0.0 for particle in particles])
    future = np.zeros(len(particles))
    error: CriticError | None = None
    if open_slots:
        try:
            future[open_slots], error = await _predict(system, [particles[slot] for slot in open_slots])
        except CriticError as raised:
            if system.settings.on_critic_error == "raise":
                raise
            future[open_slots], error = np.nan, raised
    return Valuation(returns, future, asked, failed, error)


async def _predict(system: ParticleSystem, particles: Sequence[Particle]) -> tuple[FloatArray, UnreadableAnswer | None]:
    """Return the critic's prediction `[len(particles)]`, and the error if some of it is NaN.

    It predicts the future return, or without rewards the whole return.
    """
    settings, runner, critic = system.settings, system.runner, system.target.critic
    trajectories = [runner.trajectory_of(particle) for particle in particles]
    with (
        at_most(runner.streams.max_concurrency),
        gated(runner.gate),
        metering(system.outlet.meter),
        system.features.asking_critic(),
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


def _choose_beta(system: ParticleSystem, valuation: Valuation) -> None:
    """Resolve beta="auto": the critic's own, or else that which halves the effective sample size here, if any does."""
    settings, target = system.settings, system.target
    with suppress(CriticError):  # It was never connected, so these values are not its.
        if target.beta is not None:  # A run that goes on from a durable point may have another critic.
            return require_beta(target.critic, target.beta, settings.success_reward)
        target.beta = getattr(target.critic, "beta", None)
    if target.beta is not None:
        return
    among = np.full(len(system.particles), True) if system.concluded else system.drawn
    target.beta = valuation.halving_beta(among, target.critic, settings.success_reward)
    if target.beta is None:
        return
    target.beta_step = system.step
    if system.retired:
        _weigh_retired(system, target.beta)
    where = "the end" if system.concluded else f"step {system.step}"
    system.note(
        f'beta={target.beta:.4g} was chosen at {where} (beta="auto"): it halves the effective sample size '
        "there. It depends on these particles, so log Z is not known: give a number for beta to know it"
    )


def _weigh_retired(system: ParticleSystem, beta: float) -> None:
    """Weigh the particles that ended in earlier rounds, without a beta and so with equal weights."""
    values = np.nan_to_num([each.value for each in system.retired])
    returns, future = (values, 0 * values) if system.settings.rewards_observed else (0 * values, values)
    gained = smc.potentials(returns, future, beta, system.settings.success_reward)
    system.retired = [
        replace(each, log_weight=each.log_weight + gain, log_weight_since=each.log_weight_since + gain)
        for each, gain in zip(system.retired, gained.tolist(), strict=True)
    ]
    retired = np.array([each.log_weight for each in system.retired])
    system.weights = replace(system.weights, log_retired=smc.log_sum_exp(retired))
