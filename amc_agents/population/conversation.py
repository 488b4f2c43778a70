"""The world of a conversation: a turn starts from the world of the previous turn's winner."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver

from amc_agents.errors import ConfigurationError, WorldError
from amc_agents.logs import log, room_logger
from amc_agents.population.saver import ForkSaver
from amc_agents.quoting import quoted
from amc_agents.runtime.calls import NEW_WORLD
from amc_agents.runtime.world import RecordingWorld
from amc_agents.types import Environment, Forkable, Restorable

CHANNEL = "amc_world"
"""Private channel with the reference to the winner's world, and to the world before, which the next turn deletes."""

_log = room_logger(__name__)


class ConversationWorld:
    """The saved world of a thread.

    Only worlds without `reset` continue: an `Environment` starts its task anew in each turn. The thread keeps the
    snapshots of its last two turns: the newest is not durable before the turn's last checkpoint.

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
        self._new = configurable.get(NEW_WORLD, False)
        if not isinstance(self._new, bool):
            raise ConfigurationError(f"configurable {NEW_WORLD} must be True or False, got {quoted(self._new)}")
        read = configurable.get("__pregel_read")
        self._saved: Mapping[str, Any] = (read(CHANNEL) if self._is_conversation and read else None) or {}
        self.update: dict[str, Any] = {}
        """The update of the graph's state that refers to the saved world."""
        self.notes: list[str] = []
        """Notes for the run."""

    async def begin(self, world: Forkable) -> None:
        """Restore the world of the previous turn, unless the call asks for a new world.

        Args:
            world: a new world that `environment=` made.

        Raises:
            WorldError: the snapshot is missing or damaged, or of another kind of world.
        """
        if isinstance(world, Environment) or not isinstance(world, Restorable):
            return  # `end` has noted that this kind of world is not saved.
        if self._saved.get("snapshot") is None or self._new:
            return
        try:
            await world.restore(self._saved["snapshot"])
        except Exception as error:
            raise WorldError(
                f"the world of the conversation's previous turn cannot be restored: {error}. To start from a new "
                f'world, pass config={{"configurable": {{"{NEW_WORLD}": True, ...}}}}'
            ) from error

    async def end(self, winner: RecordingWorld | None) -> None:
        """Save the winner's world for the next turn."""
        world = None if winner is None else winner.inner
        if not self._is_conversation or world is None or isinstance(world, Environment):
            return
        self.update = {CHANNEL: {"snapshot": await self._save(world), "previous": self._saved.get("snapshot")}}
        if isinstance(world, Restorable) and self._saved.get("previous") is not None:
            await _release(world, self._saved["previous"])

    async def _save(self, world: Forkable) -> Any:
        if not isinstance(world, Restorable):
            self._note(f"{type(world).__name__} has no snapshot, restore and release (Restorable)")
            return None
        try:
            return await world.snapshot()
        except Exception as error:
            self._note(f"the winner's world could not be saved ({type(error).__name__}: {error})")
            return None

    def _note(self, why: str) -> None:
        self.notes.append(f"the next turn of the conversation starts from a new world: {why}")


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
