"""Weigh the particles of a population (AMC, Algorithm 1: weigh), within the budget."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np

from amc_agents import smc
from amc_agents.errors import BudgetExhausted, UnreadableAnswer
from amc_agents.population.early_end import stop_if_decided
from amc_agents.population.population import ParticleSystem
from amc_agents.population.run_budget import RunBudget
from amc_agents.population.valuation import evaluate
from amc_agents.run import WeighingPoint


async def weigh(system: ParticleSystem) -> None:
    """Weigh the particles in their current states, and decide whether to resample them."""
    if system.decided:
        return
    if not system.deadline.passed:
        async with system.deadline.cutting():
            await _weigh_within_budget(system)
    if system.deadline.passed or system.out_of_budget:
        return
    # A resampling draws from these particles; "keep" includes the finished ones.
    stop_if_decided(system)
    drawn = np.full(len(system.particles), True) if system.settings.finished == "keep" else ~system.retirable()
    triggered = system.settings.resample.triggered(system.step, system.weights.log_weights, drawn)
    system.due = not system.concluded and bool(triggered)
    system.history.append(
        WeighingPoint(system.step, system.values.copy(), system.weights.log_weights.copy(), system.ess, None)
    )
    system.emit({"type": "amc.weigh", "step": system.step, "values": system.values.tolist(),
               "log_weights": system.weights.log_weights.tolist(), "ess": system.history[-1].ess})  # fmt: skip


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
        what = "values are unknown and their" if unread else "the critic failed and the"
        system.notes.append(f"step {system.step}: {what} weights were kept ({valuation.error})")
    potentials = np.full(len(system.particles), np.nan)
    system.values[slots], potentials[slots] = valuation.values, valuation.potentials
    system.known = ~np.isnan(potentials)
    system.weights = smc.weigh(system.weights, potentials, system.known)
