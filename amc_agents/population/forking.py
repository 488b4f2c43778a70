"""Fork particles: some continue in further slots, others are discarded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from amc_agents.population.system import ParticleSystem, Retired
from amc_agents.types import IntArray, Trajectory


async def continue_from(system: ParticleSystem, ancestors: IntArray, retired: Sequence[Retired]) -> None:
    """Make slot i continue particle `ancestors[i]`; the first offspring keeps its ancestor's world.

    Args:
        system: the particles.
        ancestors: `[M]` slots.
        retired: the particles that are kept outside of the slots.
    """
    for before_offspring in system.features.before_offspring:
        before_offspring(system)
    old, runner = list(system.particles), system.runner
    forks = {slot: old[source] for slot, source in enumerate(ancestors.tolist()) if slot != source}
    parents = {id(parent): parent for parent in forks.values() if parent.running}
    await asyncio.gather(*(runner.save(parent) for parent in parents.values()))
    offspring = await asyncio.gather(*(runner.fork(parent, slot) for slot, parent in forks.items()))
    children = dict(zip(forks, offspring, strict=True))
    for name in sorted({name for parent in parents.values() for name in runner.streams.lost_by_fork(parent)}):
        note = f"the state's `{name}` (UntrackedValue) holds an object that cannot be copied: forks start without it"
        if note not in system.outlet.notes:
            system.note(note)
    particles = [children[slot] if slot in children else old[slot] for slot in range(len(ancestors))]
    all_retired = [*system.retired, *retired]
    kept = {id(particle) for particle in particles} | {id(kept.particle) for kept in all_retired}
    kept.add(id(system.archive))  # It may become the answer, with its world.
    await asyncio.gather(*(runner.discard(particle) for particle in old if id(particle) not in kept))
    system.particles, system.retired = particles, all_retired


def dropped(system: ParticleSystem, ancestors: IntArray, retired: Sequence[int]) -> dict[int, Trajectory]:
    """Return the trajectories of the particles that have no offspring and are not retired, by slot."""
    kept = {*ancestors.tolist(), *retired}
    slots = (slot for slot in range(len(system.particles)) if slot not in kept)
    return {slot: system.runner.trajectory_of(system.particles[slot]) for slot in slots}
