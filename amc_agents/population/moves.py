"""Move particles: wait for those that run, and continue some of them in further slots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from langchain_core.runnables import RunnableConfig

from amc_agents.errors import QuorumLost, brief_causes
from amc_agents.population.particle import Particle
from amc_agents.population.particle_runner import Tasks
from amc_agents.population.system import ParticleSystem, Retired
from amc_agents.quoting import cause_of
from amc_agents.types import IntArray, Trajectory


async def wait(system: ParticleSystem, tasks: Tasks, config: RunnableConfig) -> None:
    """Wait until the tasks of particles have ended, or the run ends abruptly."""

    def stopped(particle: Particle) -> bool:
        """Consider a particle that has stopped, and return whether the run ends."""
        archive(system, particle)
        for on_step in system.features.on_step:
            on_step(system, particle)
        if (stop := system.stop) is not None:
            system.runner.stopping.set()
        return stop is not None

    if waits := system.features.around_wait:
        await waits[0](system, tasks, config, stopped)
    else:
        await wait_for(system, tasks, stopped)


async def wait_for(system: ParticleSystem, tasks: Tasks, stopped: Callable[[Particle], bool]) -> None:
    """Call `stopped` for each particle whose task has ended, until all have or the run ends abruptly."""
    ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
    for task in tasks:
        task.add_done_callback(ended.put_nowait)
    for _ in tasks:
        task = await ended.get()
        task.result()
        if stopped(tasks[task]) and (stop := system.stop) is not None and stop.abrupt:
            return


def archive(system: ParticleSystem, particle: Particle) -> None:
    """Keep the finished particle with the best return."""
    if system.settings.rewards_observed and particle.succeeded:
        if system.archive is None or particle.return_ > system.archive.return_:
            system.archive = particle


def check_quorum(system: ParticleSystem) -> list[Exception]:
    """Return the failures of particles, unless too many failed."""
    causes = [particle.error for particle in system.particles if particle.error is not None]
    alive = len(system.particles) - len(causes)
    least = system.settings.least_alive(len(system.particles))
    if alive < least:
        raise QuorumLost(alive, least, causes) from cause_of(causes[0])
    return causes


def note_failures(system: ParticleSystem, causes: Sequence[Exception]) -> None:
    """Add a note about the particles that failed."""
    note = (
        f"{len(causes)} of {len(system.particles)} particles failed: log Z refers to runs that do not fail "
        f"({brief_causes(causes)})"
    )
    if note not in system.outlet.notes:
        system.note(note)


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
