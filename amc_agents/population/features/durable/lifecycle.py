"""The durable points of a run, from its start to their deletion, for the nodes of the graph."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command, StateSnapshot, StateUpdate

from amc_agents.errors import AgentContractError, CommitError, ConfigurationError
from amc_agents.logs import log, room_logger
from amc_agents.population.features.durable.durability import DurablePopulation
from amc_agents.population.features.durable.interning import Table
from amc_agents.population.features.durable.lease import Journal, Lease
from amc_agents.population.features.durable.points import Point, PointStore, points_thread, store_of
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
from amc_agents.population.saver import ForkSaver
from amc_agents.population.settings import WrappedAgent
from amc_agents.population.start import Beginning
from amc_agents.population.system import ParticleSystem
from amc_agents.runtime.effects import attempts_of
from amc_agents.runtime.world import RecordingWorld, Worlds
from amc_agents.types import Restorable, Task

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
    if store.lease is not None:
        await store.lease.record(Journal())
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


async def admit(graph: Any, owner: OpenRun, given: Any, config: RunnableConfig, *, commits: bool, exits: bool) -> Any:
    """Take the lease of a call's thread, and return the input with which the call goes on.

    Args:
        graph: the graph that is called.
        owner: of the call; gets the lease.
        given: the input of the call.
        config: of the call, with the graph's own.
        commits: whether the agent has commit tools.
        exits: whether LangGraph writes no checkpoint before the end of the call.

    Raises:
        ThreadHeld: another call runs the thread.
        AgentContractError: a commit call of this run could be repeated after a crash.
        CommitError: a new input, but the thread's last run made commit calls and has not ended.
    """
    place = config.get("configurable", {})
    saver = place.get("__pregel_checkpointer", graph.checkpointer)
    edits = isinstance(given, Command) and bool(given.goto or given.update)
    if not owner.checkpointed or not isinstance(saver, BaseCheckpointSaver) or isinstance(saver, ForkSaver):
        if edits:
            raise ConfigurationError(_NOT_EDITABLE)
        return given
    if "thread_id" not in place:
        raise ConfigurationError(_NO_THREAD)
    if exits and commits:
        raise AgentContractError(_EXIT_LOSES_COMMITS)
    if not exits:
        thread_id, namespace = str(place["thread_id"]), place.get("checkpoint_ns", "")
        key = points_thread(thread_id, namespace)
        owner.lease = await Lease.take(saver, thread_id, key, asynchronous=owner.asynchronous)
    if owner.lease is None and commits:
        raise AgentContractError(CANNOT_SWAP.format(type(saver).__name__))
    if edits:
        return await _edited(graph, owner, given, config)
    starts_anew = given is not None and not isinstance(given, Command) and not place.get("checkpoint_ns")
    if owner.lease is None or not owner.lease.journal.made or not starts_anew:
        return given
    return await _beside_unfinished(graph, owner, owner.lease, given, config)


async def _beside_unfinished(graph: Any, owner: OpenRun, lease: Lease, given: Any, config: RunnableConfig) -> Any:
    """Return what to do with a new input in a thread whose last run made commit calls and was not seen to end."""
    state = await _state(graph, owner, config)
    if not state.tasks:
        ended = state.config["configurable"].get("checkpoint_id", "") > (lease.journal.head or "")
        if ended:  # It was killed between its last checkpoint and the end of the call.
            await lease.record(Journal())
        return given  # If not ended, no checkpoint of the graph was stored, and `init` restores the run.
    if not lease.journal.uncertain:
        raise CommitError(_UNFINISHED.format(lease.journal.made))
    owner.unread = True
    return None


async def _edited(graph: Any, owner: OpenRun, given: Command[Any], config: RunnableConfig) -> Command[Any]:
    """Keep what a command says beside its answer for the agent that asked, and return the rest."""
    tasks = (await _state(graph, owner, config)).tasks
    about_commit = owner.lease is not None and owner.lease.journal.uncertain
    if given.resume is not None and any(task.interrupts for task in tasks) and not about_commit:
        owner.edit = {"update": given.update, "goto": given.goto}
        return Command(resume=given.resume)
    if given.goto or tasks:
        raise ConfigurationError(_NOT_EDITABLE)
    return given


def check_at_rest(state: StateSnapshot, supersteps: Sequence[Sequence[StateUpdate]]) -> None:
    """Refuse to change the state of a thread whose run has not ended: its particles would not see the change.

    Args:
        state: of the thread.
        supersteps: the updates; one without values that ends or copies the thread is always possible.

    Raises:
        ConfigurationError: the run has not ended.
    """
    changes = any(update.values is not None for updates in supersteps for update in updates)
    if state.tasks and changes:
        raise ConfigurationError(_NOT_EDITABLE)


async def _state(graph: Any, owner: OpenRun, config: RunnableConfig) -> StateSnapshot:
    """Return the newest state of the call's thread."""
    newest: RunnableConfig = {**config, "configurable": {**config["configurable"]}}
    newest["configurable"].pop("checkpoint_id", None)
    state: StateSnapshot = await (
        graph.aget_state(newest) if owner.asynchronous else asyncio.to_thread(graph.get_state, newest)
    )
    return state


async def forget(saver: BaseCheckpointSaver[Any], config: RunnableConfig, *, asynchronous: bool) -> None:
    """Delete the durable points and the record of a thread.

    Args:
        saver: the graph's checkpointer.
        config: names the thread.
        asynchronous: whether the checkpointer's async methods are used.

    Raises:
        ThreadHeld: a call runs the thread.
    """
    thread_id = str(config["configurable"]["thread_id"])
    key = points_thread(thread_id)
    lease = await Lease.take(saver, thread_id, key, asynchronous=asynchronous)
    store = PointStore(saver, key, asynchronous, None, nested=False, replays=False)
    try:
        await store.delete()
    finally:
        if lease is not None:
            await lease.release(finished=True)


async def _delete(store: PointStore, worlds: Worlds) -> None:
    """Delete all points, and the snapshots of worlds to which they refer."""
    await _release_worlds(store, worlds)
    await store.delete()


async def _release_worlds(store: PointStore, worlds: Worlds) -> None:
    """Delete the snapshots of worlds to which the points refer; an answered run needs them no more."""
    world = worlds.first
    if world is not None and isinstance(world.inner, Restorable):
        await release(await store.snapshots(), world.inner)


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
    store = None
    if owner.checkpointed:
        store = store_of(config, asynchronous=owner.asynchronous, replays=owner.replays, lease=owner.lease)
    if store is not None:
        # Nobody can go back to nested points: a graph's history does not reach into the nodes of a finished call.
        owner.after_result = partial(_delete if store.nested else _release_worlds, store, owner.worlds)
    return store


_NOT_EDITABLE = (
    "the state of a run lies in its particles, so that it is only changed together with the answer to the agent's "
    "question, by Command(resume=answer, update=..., goto=...): goto= alone, and update= or update_state in a thread "
    "whose run has not ended, or asks whether a commit call ran, would be ignored"
)
_NO_THREAD = (
    "a graph with a checkpointer needs to know the thread: pass config={'configurable': {'thread_id': ...}} "
    "(Checkpointer requires one or more of the following 'configurable' keys: thread_id, checkpoint_ns, checkpoint_id)"
)
_EXIT_LOSES_COMMITS = (
    'the agent has commit tools, and with durability="exit" no checkpoint is written before the end of the call, so '
    'that a run that breaks off would repeat its commits: use durability="async" or "sync", or build amc() with '
    "checkpointer=False"
)
CANNOT_SWAP = (
    "the agent has commit tools, and the checkpointer {} cannot tell two callers of a thread apart, so that both could "
    "make the same commit: use InMemorySaver, SqliteSaver, PostgresSaver or their async forms, give the checkpointer "
    "aread_record and aswap_record (docs/durable.md), or build amc() with checkpointer=False"
)
_UNFINISHED = (
    "the thread's last run broke off, or waits for an answer, after it made {} commit call(s), which a new input could "
    "repeat: first finish it with invoke(None, config), or answer its question with Command(resume=...); then send the "
    "new input. graph.forget(config) deletes the run instead"
)
_LOST = (
    "the thread's last run made {} commit call(s), but its durable points are lost, and a restart from the input could "
    "repeat them. Find out what was done; graph.forget(config) deletes the run, so that a new input starts anew"
)
_COMMITS_NEED_POINTS = (
    "the agent has commit tools and a checkpointer, but its worlds cannot be saved, so that a resumed run could repeat "
    "a commit: give {} snapshot, restore and release (Restorable), or pass checkpointer=False"
)


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
