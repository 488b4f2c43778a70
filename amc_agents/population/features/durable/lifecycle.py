"""The durable points of a run: prepare those of a new run, and start a run from a point."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableConfig

from amc_agents.errors import AgentContractError, CommitError
from amc_agents.logs import log, room_logger
from amc_agents.population.feature import Features
from amc_agents.population.features.durable.durability import DurablePoints
from amc_agents.population.features.durable.interning import Table
from amc_agents.population.features.durable.lease import Journal
from amc_agents.population.features.durable.points import Point, PointStore, store_of
from amc_agents.population.features.durable.records import (
    check_settings,
    load_particle,
    load_reader,
    load_system,
    load_usage,
)
from amc_agents.population.features.durable.world_record import can_be_restored, load_world, release
from amc_agents.population.open_run import OpenRun
from amc_agents.population.particle import Particle, State
from amc_agents.population.settings import WrappedAgent
from amc_agents.population.start import Beginning
from amc_agents.population.system import ParticleSystem
from amc_agents.runtime.effects import attempts_of
from amc_agents.runtime.world import RecordingWorld, Worlds
from amc_agents.types import Restorable, Task

_log = room_logger(__name__)


async def new_population(system: ParticleSystem, config: RunnableConfig) -> None:
    """Delete the points of the thread's previous run, and give a new run durable points if it can have them.

    Args:
        system: before its first step.
        config: of the node.
    """
    store = _store(config)
    if store is None:
        return
    if store.lease is not None:
        await store.lease.record(Journal())
    await _delete(store, OpenRun.of(config).worlds)
    worlds = [particle.world for particle in system.particles if particle.world is not None]
    if all(map(can_be_restored, worlds)):
        system.features.add(DurablePoints(store, Table(store.saver.serde)))
        return
    if any(map(attempts_of, system.particles[0].door.effects.values())):
        raise AgentContractError(_COMMITS_NEED_POINTS.format(type(worlds[0].inner).__name__))
    system.note(
        f"no durable points: a crash restarts the run from its input, because {type(worlds[0].inner).__name__} has "
        "neither snapshot, restore and release (Restorable) nor reset and step (Environment)"
    )


async def read_population(point: Mapping[str, Any] | None, config: RunnableConfig) -> Recorded | None:
    """Read the population with which a run goes on; None: it restarts from its input.

    Args:
        point: the durable point that the graph's checkpoint names; None: none.
        config: of the node.

    Raises:
        CommitError: the run made commit calls, and its points are lost.
    """
    store = _store(config)
    found = None if store is None else await store.read_current(None if point is None else point["point"])
    if store is None or found is None:
        lease = OpenRun.of(config).lease
        made = max(0 if lease is None else lease.journal.made, 0 if point is None else point.get("commits", 0))
        if made:
            raise CommitError(_LOST.format(made))
        why = "it had no durable point" if point is None else f"its durable point at step {point['step']} was deleted"
        log(
            _log,
            logging.WARNING,
            "run.restarts",
            "a thread's run broke off and restarts from its input: %(why)s",
            why=why,
        )
        return None
    return Recorded(found, store)


async def read_unfinished(config: RunnableConfig) -> Recorded | None:
    """Read the population of a run that made commit calls, if the call would start it anew; None: there is none.

    LangGraph's checkpoints can lag behind the durable points, so that a killed run resumes at its first node.
    """
    lease = OpenRun.of(config).lease
    return await read_population(None, config) if lease is not None and lease.journal.made else None


async def _delete(store: PointStore, worlds: Worlds) -> None:
    """Delete all points, and the snapshots of worlds to which they refer."""
    await _release_worlds(store, worlds)
    await store.delete()


async def _release_worlds(store: PointStore, worlds: Worlds) -> None:
    """Delete the snapshots of worlds to which the points refer; an answered run needs them no more."""
    world = worlds.first
    if world is not None and isinstance(world.inner, Restorable):
        await release(await store.snapshots(), world.inner)


def _store(config: RunnableConfig) -> PointStore | None:
    owner = OpenRun.of(config)
    store = None
    if owner.checkpointed:
        store = store_of(config, asynchronous=owner.asynchronous, replays=owner.replays, lease=owner.lease)
    if store is not None:
        # Nobody can go back to nested points: a graph's history does not reach into the nodes of a finished call.
        owner.after_result = partial(_delete if store.nested else _release_worlds, store, owner.worlds)
    return store


class Recorded:
    """The population of a durable point.

    Args:
        point: the point.
        store: where it lies, and where the next points will.
    """

    def __init__(self, point: Point, store: PointStore) -> None:
        self._record: dict[str, Any] = point.table.decode(point.root)
        self.then: str = self._record["then"]
        """The verb with which the run goes on."""
        self.seed: int = self._record["seed"]
        self.meter = load_usage(self._record)
        self.spent_s: float = self._record["elapsed_s"]
        self.run_id: str | None = self._record["run_id"]
        self._durable = DurablePoints(store, point.table, point.id, self.spent_s)

    async def create_worlds(
        self, wrapped: WrappedAgent, given: State, worlds: Worlds, features: Features
    ) -> tuple[Sequence[RecordingWorld | None], Task | None]:
        """Restore the worlds."""
        records = [particle["world"] for particle in self._record["particles"]]
        make = wrapped.environment
        if make is None or not any(records):
            return [None] * len(records), None
        restored = await asyncio.gather(
            *(load_world(record, lambda: make(given), worlds) for record in records if record is not None)
        )
        rest = iter(restored)
        return [None if record is None else next(rest)[0] for record in records], restored[0][1]

    def create_particles(
        self, given: State, task: Task | None, worlds: Sequence[RecordingWorld | None], start: Beginning
    ) -> list[Particle]:
        """Restore all particles: live, retired and archived."""
        readers = [load_reader(record, task) for record in self._record["readers"]]
        return [
            load_particle(
                record,
                start.saver,
                world=world,
                readers=readers,
                effects=start.wrapped.effects.tools,
            )
            for record, world in zip(self._record["particles"], worlds, strict=True)
        ]

    async def complete(self, system: ParticleSystem, seed: int | None) -> None:
        """Restore the weights, and draw the future from another seed if the call gives one."""
        check_settings(self._record, system.settings)
        system.features.add(self._durable)
        load_system(self._record, system, system.particles)
        if seed is not None and seed != self.seed:
            await _reseed(system, seed)


async def _reseed(system: ParticleSystem, seed: int) -> None:
    """Draw the future of the particles and their worlds from another seed."""
    system.note(f"from step {system.step} on, the run was replayed with seed {seed} instead of {system.outlet.seed}")
    system.outlet.seed, system.rng = seed, np.random.default_rng([seed, 1, system.step])
    rngs = np.random.default_rng([seed, 0, system.step]).spawn(len(system.particles))
    for particle, rng in zip(system.particles, rngs, strict=True):
        particle.rng = rng
        if particle.world is not None:
            world = await particle.world.fork(int(rng.integers(2**63)))
            await particle.world.close()
            particle.world = world


_LOST = (
    "the thread's last run made {} commit call(s), but its durable points are lost, and a restart from the input could "
    "repeat them. Find out what was done; graph.forget(config) deletes the run, so that a new input starts anew"
)
_COMMITS_NEED_POINTS = (
    "the agent has commit tools and a checkpointer, but its worlds cannot be saved, so that a resumed run could repeat "
    "a commit: give {} snapshot, restore and release (Restorable), or pass checkpointer=False"
)
