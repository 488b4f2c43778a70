"""Weigh the particles of a population (AMC, Algorithm 1: weigh), within the budget."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np

from amc_agents import smc
from amc_agents.critics.uses import require_beta
from amc_agents.errors import BudgetExhausted, CriticError, UnreadableAnswer
from amc_agents.population.early_end import stop_if_decided
from amc_agents.population.population import ParticleSystem
from amc_agents.population.run_budget import RunBudget
from amc_agents.population.valuation import Valuation, evaluate
from amc_agents.run import WeighingPoint
from amc_agents.smc.weights import BoolArray


async def weigh(system: ParticleSystem) -> None:
    """Weigh the particles in their current states, and decide whether to resample them."""
    if system.decided:
        return
    if not system.deadline.passed:
        async with system.deadline.cutting():
            await _weigh_within_budget(system)
    if system.deadline.passed or system.out_of_budget:
        return
    stop_if_decided(system)
    triggered = system.settings.resample.triggered(system.step, system.weights.log_weights, _drawn(system))
    # Without a beta, a resampling could only discard particles at random.
    system.due = not system.concluded and system.beta is not None and bool(triggered)
    system.history.append(
        WeighingPoint(system.step, system.values.copy(), system.weights.log_weights.copy(), system.ess, None)
    )
    system.emit({"type": "amc.weigh", "step": system.step, "values": system.values.tolist(),
               "log_weights": system.weights.log_weights.tolist(), "ess": system.history[-1].ess})  # fmt: skip


def _drawn(system: ParticleSystem) -> BoolArray:
    """`[N]` the particles from which a resampling draws; "keep" includes the finished ones."""
    return np.full(len(system.particles), True) if system.settings.finished == "keep" else ~system.retirable()


def _choose_beta(system: ParticleSystem, valuation: Valuation) -> None:
    """Resolve beta="auto": the critic's own, or else that which halves the effective sample size here, if any does."""
    settings = system.settings
    with suppress(CriticError):  # It was never connected, so these values are not its.
        if system.beta is not None:  # A run that goes on from a durable point may have another critic.
            return require_beta(system.critic, system.beta, settings.success_reward)
        system.beta = getattr(system.critic, "beta", None)
    if system.beta is not None:
        return
    among = np.full(len(system.particles), True) if system.concluded else _drawn(system)
    system.beta = valuation.halving_beta(among, system.critic, settings.success_reward)
    if system.beta is None:
        return
    system.beta_step = system.step
    if system.retired:
        _weigh_earlier_rounds(system, system.beta)
    where = "the end" if system.concluded else f"step {system.step}"
    system.notes.append(
        f'beta={system.beta:.4g} was chosen at {where} (beta="auto"): it halves the effective sample size '
        "there. It depends on these particles, so log Z is not known: give a number for beta to know it"
    )


def _weigh_earlier_rounds(system: ParticleSystem, beta: float) -> None:
    """Weigh the particles of an adaptive run's earlier rounds, which ended without a beta and so with equal weights."""
    values = np.nan_to_num([each.value for each in system.retired])
    returns, future = (values, 0 * values) if system.settings.rewards_observed else (0 * values, values)
    gained = smc.potentials(returns, future, beta, system.settings.success_reward)
    system.retired = [
        replace(each, log_weight=each.log_weight + gain, log_weight_since=each.log_weight_since + gain)
        for each, gain in zip(system.retired, gained.tolist(), strict=True)
    ]
    retired = np.array([each.log_weight for each in system.retired])
    system.weights = replace(system.weights, log_retired=smc.log_sum_exp(retired))


async def _weigh_within_budget(system: ParticleSystem) -> None:
    """Weigh all particles; where that does not fit the budget, finish one of them first, and try again."""
    everyone, budget = [*range(len(system.particles))], system.budget
    if budget is None:
        return await _weigh(system, everyone)
    try:
        if not budget.exhausted:
            return await _weigh(system, everyone)
    except BudgetExhausted:
        if await _finish_best(system, budget):
            return await _weigh_within_budget(system)
    budget.spend_reserve()
    try:
        await _weigh(system, [slot for slot in everyone if _awaits_value(system, slot)])
    except BudgetExhausted:
        system.notes.append("the budget did not suffice for a last weighing of the finished particles")


def _awaits_value(system: ParticleSystem, slot: int) -> bool:
    particle = system.particles[slot]
    return particle.finished and particle.error is None and bool(np.isnan(system.values[slot]))


async def _finish_best(system: ParticleSystem, budget: RunBudget) -> bool:
    return await budget.finish_best({}, system.particles, system.weights.log_weights, system.runner, system.config)


async def _weigh(system: ParticleSystem, slots: list[int]) -> None:
    """Update the values and weights of some slots; the others keep their weights."""
    if not slots:
        return
    with nullcontext() if system.budget is None else system.budget.weighing():
        valuation = await evaluate(
            [system.particles[slot] for slot in slots], system.critic, system.runner, system.settings, system.meter
        )
    if valuation.error is not None:
        unread = isinstance(valuation.error, UnreadableAnswer)
        failed = "the critic failed and the weights were kept"
        what = "unknown values count as the mean of the others" if unread else failed
        system.notes.append(f"step {system.step}: {what} ({valuation.error})")
    settings = system.settings
    if settings.beta == "auto" and len(slots) == len(system.particles):
        _choose_beta(system, valuation)
    potentials = np.full(len(system.particles), np.nan)
    system.values[slots] = valuation.values
    potentials[slots] = valuation.potentials(system.beta, settings.success_reward)
    system.known = np.full(len(system.particles), False)
    system.known[slots] = ~np.isnan(valuation.future)
    system.weights = smc.weigh(system.weights, potentials, ~np.isnan(potentials))
