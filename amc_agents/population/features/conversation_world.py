"""The world of a conversation: a turn starts from the world of the previous turn's winner."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, finalize

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents.concurrency.background import on_background_loop, run_in_background, start_in_background
from amc_agents.errors import ConfigurationError, WorldError
from amc_agents.logs import log, room_logger
from amc_agents.population.feature import Feature
from amc_agents.population.particle import Particle
from amc_agents.population.saver import ForkSaver
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import quoted
from amc_agents.run import Run
from amc_agents.runtime.calls import NEW_WORLD
from amc_agents.types import Environment, Forkable, Restorable

CHANNEL = "amc_world"
"""Private channel with the reference to the winner's world, and to the world before, which the next turn deletes."""

_log = room_logger(__name__)


class ConversationWorld(Feature):
    """The saved world of a thread.

    Only worlds without `reset` continue: an `Environment` starts its task anew in each turn. The thread keeps the
    snapshots of its last two turns: the newest is not durable before the turn's last checkpoint. They are deleted with
    an `InMemorySaver`, or at the end of its process; with other checkpointers they remain for the next turn.

    Args:
        config: of a node of the graph.
    """

    def __init__(self, config: RunnableConfig) -> None:
        configurable = config.get("configurable", {})
        saver = configurable.get("__pregel_checkpointer")
        self._is_conversation = (
            isinstance(saver, BaseCheckpointSaver)
            and not isinstance(saver, ForkSaver)
            and "|" not in configurable.get("checkpoint_ns", "")  # A node of another graph keeps no state.
        )
        self._saver, self._thread_id = saver, str(configurable.get("thread_id"))
        self._new = configurable.get(NEW_WORLD, False)
        if not isinstance(self._new, bool):
            raise ConfigurationError(f"configurable {NEW_WORLD} must be True or False, got {quoted(self._new)}")
        read = configurable.get("__pregel_read")
        self._saved: Mapping[str, Any] = (read(CHANNEL) if self._is_conversation and read else None) or {}

    async def on_world(self, world: Forkable) -> None:
        """Restore the world of the previous turn, unless the call asks for a new world.

        Args:
            world: a new world that `environment=` made.

        Raises:
            WorldError: the snapshot is missing or damaged, or of another kind of world.
        """
        if isinstance(world, Environment) or not isinstance(world, Restorable):
            return  # `on_end` has noted that this kind of world is not saved.
        if self._saved.get("snapshot") is None or self._new:
            return
        try:
            await world.restore(self._saved["snapshot"])
        except Exception as error:
            raise WorldError(
                f"the world of the conversation's previous turn cannot be restored: {error}. To start from a new "
                f'world, pass config={{"configurable": {{"{NEW_WORLD}": True, ...}}}}'
            ) from error

    async def on_end(self, system: ParticleSystem, run: Run, winner: Particle) -> Run:
        """Save the winner's world for the next turn."""
        world = None if winner.world is None else winner.world.inner
        if not self._is_conversation or world is None or isinstance(world, Environment):
            return run
        saved = {"snapshot": await self._save(world, system), "previous": self._saved.get("snapshot")}
        system.outlet.channels[CHANNEL] = saved
        if not isinstance(world, Restorable):
            return run
        if self._saved.get("previous") is not None:
            await _release(world, self._saved["previous"])
        if type(self._saver) is InMemorySaver:  # Subclasses may store threads.
            _release_with(self._saver, self._thread_id, world, list(saved.values()))
        return run

    async def _save(self, world: Forkable, system: ParticleSystem) -> Any:
        if not isinstance(world, Restorable):
            why = f"{type(world).__name__} has no snapshot, restore and release (Restorable)"
        else:
            try:
                return await world.snapshot()
            except Exception as error:
                why = f"the winner's world could not be saved ({type(error).__name__}: {error})"
        system.note(f"the next turn of the conversation starts from a new world: {why}")
        return None


async def _release(world: Restorable, snapshot: Any) -> None:
    try:
        await world.release(snapshot)
    except Exception as error:
        log(
            _log,
            logging.WARNING,
            "world.snapshot_left",
            "the saved world of an earlier turn could not be deleted: %(text)s",
            text=error,
        )


_in_memory: WeakKeyDictionary[InMemorySaver, _Threads] = WeakKeyDictionary()


@dataclass
class _Threads:
    """The snapshots of threads that end with their checkpointer, which is in memory."""

    snapshots: dict[str, tuple[Restorable, list[Any]]] = field(default_factory=dict)
    process_id: int = field(default_factory=os.getpid)

    async def release(self) -> None:
        for world, references in self.snapshots.values():
            for reference in references:
                if reference is not None:
                    await _release(world, reference)


def _release_with(saver: InMemorySaver, thread_id: str, world: Restorable, snapshots: list[Any]) -> None:
    """Delete a thread's snapshots when its checkpointer is dropped, or at the end of the process."""
    if saver not in _in_memory:
        _in_memory[saver] = _Threads()
        finalize(saver, _release_dropped, _in_memory[saver]).atexit = False
    _in_memory[saver].snapshots[thread_id] = world, snapshots


def _release_dropped(threads: _Threads) -> None:
    if threads.process_id == os.getpid():
        start_in_background(threads.release())


@atexit.register
def _release_left() -> None:
    for threads in list(_in_memory.values()):
        if threads.process_id == os.getpid() and not on_background_loop():
            with suppress(Exception):
                run_in_background(threads.release(), n_workers=1)
