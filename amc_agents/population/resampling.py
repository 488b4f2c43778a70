"""Resample the particles of a population (AMC, Algorithm 1: resample), begin another round, and continue one alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from amc_agents import smc
from amc_agents.population.system import ParticleSystem, Retired
from amc_agents.types import IntArray, Trajectory


async def resample(system: ParticleSystem) -> None:
    """Resample: discard light particles, fork heavy ones, and retire finished ones."""
    system.compare_twins()
    before = system.weights
    after, info = smc.resample(
        system.rng,
        before,
        system.retirable(),
        scheme=system.settings.scheme,
        mode=system.settings.finished,
        n_offspring=_next_size(system),
    )
    if not info.resampled:
        system.weights = after
        return
    ancestors = info.ancestors
    slots = tuple(np.flatnonzero(info.retired).tolist())
    retired = [system.retire(slot) for slot in slots]
    dropped = _dropped(system, ancestors, slots)
    async with system.deadline.cutting():
        await _continue_from(system, ancestors, retired)
    if system.deadline.passed:
        return
    system.weights, system.values = after, system.values[ancestors]
    system.history[-1] = replace(system.history[-1], ancestors=ancestors.copy(), retired=slots, dropped=dropped)
    system.emit({"type": "amc.resample", "step": system.step, "ancestors": ancestors.tolist(),
               "retired": list(slots)})  # fmt: skip


async def begin_again(system: ParticleSystem) -> bool:
    """Start a round of new particles if all have ended and an adaptive run is undecided; return whether it did."""
    earlier = system.n_earlier + len(system.particles)
    if system.rule is None or system.recruit is None or not system.can_begin_again:
        return False
    standing = system.standing()
    n_new = system.rule.next_round(standing, earlier)
    if not n_new:
        return False
    system.compare_twins()
    async with system.deadline.cutting():
        recruits = await system.recruit(n_new, earlier)
    if system.deadline.passed:
        return False
    system.notes.append(
        f"undecided after {earlier} particles (another would overtake the answer with probability up to "
        f"{standing.overtaking:.2g}): {n_new} more were started, and log Z is not known"
    )
    retired = [*system.retired, *(system.retire(slot) for slot in range(len(system.particles)))]
    system.weights, scale = smc.begin_again(system.weights, earlier, n_new)
    system.retired = [replace(each, log_weight=each.log_weight + scale) for each in retired]
    system.particles, system.values, system.known = recruits, np.full(n_new, np.nan), np.ones(n_new, dtype=np.bool_)
    system.step = system.last_pause = 0
    system.n_earlier = earlier
    system.twins.begin_again()
    return True


async def continue_alone(system: ParticleSystem, slot: int) -> None:
    """Continue all slots from one particle, and clear all others: they did not live through its past.

    The weights start again, conditional on this past (`smc.restart`).
    """
    system.compare_twins()
    particle = system.particles[slot]
    cleared = [retired.particle for retired in system.retired]
    if system.archive is not None and all(system.archive is not other for other in system.everyone):
        cleared.append(system.archive)
    system.retired, system.archive = [], None
    ancestors = np.full(len(system.particles), slot)
    dropped = _dropped(system, ancestors, ())
    await _continue_from(system, ancestors, [])
    await asyncio.gather(*(system.runner.discard(other) for other in cleared))
    base = particle.return_ / system.beta if system.settings.rewards_observed and system.beta is not None else 0.0
    system.weights = smc.restart(len(system.particles), base)
    system.values, system.known = system.values[ancestors], system.known[ancestors]
    system.step = system.last_pause = particle.steps
    system.selected, system.chosen_past, system.n_earlier = None, True, 0
    system.history[-1] = replace(system.history[-1], ancestors=ancestors, selected=slot, dropped=dropped)


async def _continue_from(system: ParticleSystem, ancestors: IntArray, retired: Sequence[Retired]) -> None:
    """Make slot i continue particle `ancestors[i]`; the first offspring keeps its ancestor's world."""
    old = list(system.particles)
    forks = {slot: old[source] for slot, source in enumerate(ancestors.tolist()) if slot != source}
    parents = {id(parent): parent for parent in forks.values() if parent.running}
    await asyncio.gather(*(system.runner.save(parent) for parent in parents.values()))
    offspring = await asyncio.gather(*(system.runner.fork(parent, slot) for slot, parent in forks.items()))
    children = dict(zip(forks, offspring, strict=True))
    for name in sorted({name for parent in parents.values() for name in system.runner.streams.lost_by_fork(parent)}):
        note = f"the state's `{name}` (UntrackedValue) holds an object that cannot be copied: forks start without it"
        if note not in system.notes:
            system.notes.append(note)
    gone = {id(kept.particle) for kept in retired}
    for slot, child in children.items():
        if slot < len(old) and id(old[slot]) in gone and child.segment is not None:
            child.segment.refills = True
    particles = [children[slot] if slot in children else old[slot] for slot in range(len(ancestors))]
    all_retired = [*system.retired, *retired]
    kept = {id(particle) for particle in particles} | {id(kept.particle) for kept in all_retired}
    kept.add(id(system.archive))  # It may become the answer, with its world.
    await asyncio.gather(*(system.runner.discard(particle) for particle in old if id(particle) not in kept))
    system.particles, system.retired = particles, all_retired


def _dropped(system: ParticleSystem, ancestors: IntArray, retired: Sequence[int]) -> dict[int, Trajectory]:
    """Return the trajectories of the particles that have no offspring and are not retired, by slot."""
    kept = {*ancestors.tolist(), *retired}
    slots = (slot for slot in range(len(system.particles)) if slot not in kept)
    return {slot: system.runner.trajectory_of(system.particles[slot]) for slot in slots}


def _next_size(system: ParticleSystem) -> int:
    if system.rule is None:
        return len(system.particles)
    return system.rule.next_size(system.particles, system.values, system.weights.log_weights, system.n_earlier)
