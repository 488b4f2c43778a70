"""Run the particles of a population to their next weighing point (AMC, Algorithm 1: propagate)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from langchain_core.runnables import RunnableConfig

from amc_agents.errors import QuorumLost, brief_causes
from amc_agents.population.early_end import archive_and_maybe_stop, ends_now, forget_values
from amc_agents.population.run_budget import Tasks
from amc_agents.population.system import ParticleSystem
from amc_agents.population.time_limits import stop
from amc_agents.quoting import cause_of


async def propagate(system: ParticleSystem, config: RunnableConfig) -> None:
    """Run every particle to the next weighing point or to its end, or to a pause on the way (`at_pause`).

    Args:
        system: the population.
        config: for the particles that start here.
    """
    system.at_pause = False
    if system.stopped_by is not None:
        return
    until = system.settings.resample.next_point(system.step)
    if until is not None and until >= system.settings.horizon:
        until = None
    pause = _next_pause(system, until)
    system.config = config
    moving = [particle.can_step for particle in system.particles]
    tasks = {
        system.runner.advance(particle, until if pause is None else pause, system.stopping, config): particle
        for particle in system.particles
        if particle.can_step
    }
    try:
        async with system.deadline.cutting():
            await _wait(system, tasks, config)
    finally:
        await stop([*tasks])
    if system.deadline.passed or system.decided or system.out_of_budget:
        archive_and_maybe_stop(system)
        forget_values(system, moving)
        return
    causes = _check_quorum(system)
    if pause is not None and not system.concluded and not system.at_door:
        system.last_pause, system.at_pause = pause, True
        return
    system.step = max(particle.steps for particle in system.particles) if until is None or system.at_door else until
    system.last_pause = system.step
    _note_failures(system, causes)


def _next_pause(system: ParticleSystem, until: int | None) -> int | None:
    """Return the step of the next durable point before the weighing point `until`; None: there is none."""
    if system.durable is None or system.settings.durable_every is None:
        return None
    pause = system.last_pause + system.settings.durable_every
    return pause if until is None or pause < until else None


async def _wait(system: ParticleSystem, tasks: Tasks, config: RunnableConfig) -> None:
    """Wait for the particles' tasks, as far as the budget allows."""
    if system.budget is not None:
        ends = partial(ends_now, system)
        await system.budget.wait(tasks, system.particles, system.weights.log_weights, system.runner, config, ends)
        return
    for finished in asyncio.as_completed(tasks):
        await finished
        ends_now(system)
        if system.decided:
            return


def _check_quorum(system: ParticleSystem) -> list[Exception]:
    """Return the failures of particles, unless too many failed."""
    causes = [particle.error for particle in system.particles if particle.error is not None]
    alive = len(system.particles) - len(causes)
    least = system.settings.least_alive(len(system.particles))
    if alive < least:
        raise QuorumLost(alive, least, causes) from cause_of(causes[0])
    return causes


def _note_failures(system: ParticleSystem, causes: Sequence[Exception]) -> None:
    if causes:
        note = (
            f"{len(causes)} of {len(system.particles)} particles failed: log Z refers to runs that do not fail "
            f"({brief_causes(causes)})"
        )
        if note not in system.notes:
            system.notes.append(note)
