"""The durable points of a run, from its start to their deletion, for the nodes of the graph."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig

from amc_agents.errors import AgentContractError
from amc_agents.logs import log, room_logger
from amc_agents.population.durable.durability import DurablePopulation
from amc_agents.population.durable.interning import Table
from amc_agents.population.durable.points import PointStore, store_of
from amc_agents.population.durable.recorded import Recorded
from amc_agents.population.durable.world_record import can_be_restored, release
from amc_agents.population.open_run import OpenRun
from amc_agents.population.population import ParticleSystem
from amc_agents.runtime.effects import attempts_of
from amc_agents.runtime.world import Worlds
from amc_agents.types import Restorable

_log = room_logger(__name__)


async def new_population(system: ParticleSystem, config: RunnableConfig) -> DurablePopulation | None:
    """Delete the points of the thread's previous run, and prepare those of a new run; None: it has none.

    Args:
        system: before its first step.
        config: of the node.
    """
    store = _store(config)
    if store is None:
        return None
    await _delete(store, system.worlds)
    worlds = [particle.world for particle in system.particles if particle.world is not None]
    if all(map(can_be_restored, worlds)):
        return DurablePopulation(store, Table(store.saver.serde))
    if any(map(attempts_of, system.particles[0].door.effects.values())):
        raise AgentContractError(_COMMITS_NEED_POINTS.format(type(worlds[0].inner).__name__))
    system.notes.append(
        f"no durable points: a crash restarts the run from its input, because {type(worlds[0].inner).__name__} has "
        "neither snapshot, restore and release (Restorable) nor reset and step (Environment)"
    )
    return None


async def read_population(point: Mapping[str, Any] | None, config: RunnableConfig) -> Recorded | None:
    """Read the population with which a run goes on; None: it restarts from its input.

    Args:
        point: the durable point that the graph's checkpoint names; None: none.
        config: of the node.
    """
    store = _store(config)
    found = None if store is None else await store.read_current(None if point is None else point["point"])
    if store is None or found is None:
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


async def _delete(store: PointStore, worlds: Worlds) -> None:
    """Delete all points, and the snapshots of worlds to which they refer."""
    world = worlds.first
    if world is not None and isinstance(world.inner, Restorable):
        await release(await store.snapshots(), world.inner)
    await store.delete()


async def saved(system: ParticleSystem, then: str) -> dict[str, Any]:
    """Save a population, and return the update of the graph's state that names the point.

    Args:
        system: the population.
        then: the node at which a restored population goes on.
    """
    point = None if system.durable is None else await system.durable.save(system, then)
    return {} if point is None else {"amc_point": point}


def _store(config: RunnableConfig) -> PointStore | None:
    owner = OpenRun.of(config)
    store = store_of(config, asynchronous=owner.asynchronous, replays=owner.replays) if owner.checkpointed else None
    if store is not None and store.nested:
        # Nobody can go back to them: a graph's history does not reach into the nodes of a finished call.
        owner.after_result = partial(_delete, store, owner.worlds)
    return store


_COMMITS_NEED_POINTS = (
    "the agent has commit tools and a checkpointer, but its worlds cannot be saved, so that a resumed run could repeat "
    "a commit: give {} snapshot, restore and release (Restorable), or pass checkpointer=False"
)
