"""Start a run from a durable point."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.population.durable.durability import DurablePopulation
from amc_agents.population.durable.particle_record import load_particle, load_reader
from amc_agents.population.durable.points import Point, PointStore
from amc_agents.population.durable.system_record import check_settings, load_system, load_usage
from amc_agents.population.durable.world_record import load_world
from amc_agents.population.origin import Beginning
from amc_agents.population.particle import Particle, State
from amc_agents.population.population import ParticleSystem
from amc_agents.population.wrapped_agent import WrappedAgent
from amc_agents.runtime.world import RecordingWorld, Worlds
from amc_agents.types import Task


class Recorded:
    """The population of a durable point.

    Args:
        point: the point.
        store: where it lies, and where the next points will.
    """

    def __init__(self, point: Point, store: PointStore) -> None:
        self._durable = DurablePopulation(store, point.table, point.id)
        self._record: dict[str, Any] = point.table.decode(point.root)
        self.then: str = self._record["then"]
        """The node at which the run goes on."""
        self.seed: int = self._record["seed"]
        self.meter = load_usage(self._record)
        self.spent_s: float = self._record["elapsed_s"]
        self.run_id: str | None = self._record["run_id"]

    async def create_worlds(
        self, wrapped: WrappedAgent, given: State, worlds: Worlds
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
                base_store=start.base_store,
                effects=start.wrapped.effects.tools,
            )
            for record, world in zip(self._record["particles"], worlds, strict=True)
        ]

    async def complete(self, system: ParticleSystem, seed: int | None) -> None:
        """Restore the weights, and draw the future from another seed if the call gives one."""
        check_settings(self._record, system.settings)
        load_system(self._record, system, system.particles)
        system.durable = self._durable
        if seed is not None and seed != self.seed:
            await _reseed(system, seed)


async def _reseed(system: ParticleSystem, seed: int) -> None:
    """Draw the future of the particles and their worlds from another seed."""
    system.notes.append(f"from step {system.step} on, the run was replayed with seed {seed} instead of {system.seed}")
    system.seed, system.rng = seed, np.random.default_rng([seed, 1, system.step])
    rngs = np.random.default_rng([seed, 0, system.step]).spawn(len(system.particles))
    for particle, rng in zip(system.particles, rngs, strict=True):
        particle.rng = rng
        if particle.world is not None:
            world = await particle.world.fork(int(rng.integers(2**63)))
            await particle.world.close()
            particle.world = world
