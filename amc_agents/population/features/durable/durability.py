"""Save a population as a durable point."""

from __future__ import annotations

import logging
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointMetadata

from amc_agents import smc
from amc_agents.logs import log, room_logger
from amc_agents.population.features.durable.interning import Memo, Table
from amc_agents.population.features.durable.lease import Journal
from amc_agents.population.features.durable.points import PointStore
from amc_agents.population.features.durable.records import dump_system
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import excerpt

_log = room_logger(__name__)


class DurablePopulation:
    """The chain of points of one population.

    Args:
        store: where the points lie.
        table: the nodes of the points so far.
        parent_id: the last point; None: there is none.
    """

    def __init__(self, store: PointStore, table: Table, parent_id: str | None = None) -> None:
        self.store = store
        self._table = table
        self._parent_id = parent_id
        self._refused = False
        self._memo = Memo()
        self._snapshots: list[Any] = []
        """The saved states of worlds in the points so far."""

    @property
    def journals(self) -> bool:
        """Whether a commit call can be journaled so that no other caller repeats it."""
        return self.store.lease is not None

    async def forget_commits(self) -> None:
        """Let the thread's next input start a new run, although this one made commit calls."""
        if self.store.lease is not None:
            await self.store.lease.record(Journal())

    async def save(self, system: ParticleSystem, then: str = "propagate") -> dict[str, Any] | None:
        """Save the population; after a crash it goes on at the node `then`. It is durable when this returns.

        The agents of all running particles are stopped, and start again from their checkpoints.

        Returns:
            The value of the graph's channel `amc_point`; None: the population cannot be saved, as the run's notes say.

        Raises:
            ThreadHeld: another call has taken the thread over.
        """
        if self._refused or system.cancelled_within_steps:  # Some agents were cancelled within a step.
            return None
        await system.pause()
        if self.store.lease is not None:
            await self.store.lease.check()
        facts = {
            "commits": len(system.commits),
            "step": max(system.step, system.last_pause),
            "ess": system.ess,
            "log_evidence": float(smc.log_evidence(system.weights)) if system.beta_is_given else float("nan"),
        }
        try:
            record = await dump_system(system, self._memo)
            root = self._table.encode({"then": then, **record})
        except Exception as error:
            self._refuse(system, error)
            return None
        worlds = [particle["world"] or {} for particle in record["particles"]]
        snapshots = [
            world["snapshot"] for world in worlds if "snapshot" in world and world["snapshot"] not in self._snapshots
        ]
        metadata = cast(CheckpointMetadata, {"source": "loop", "step": system.step, "amc_commits": system.n_attempts})
        try:
            point_id = await self.store.write(self._parent_id, self._table.new, root, snapshots, metadata)
        except Exception as error:
            if self._parent_id is not None:
                raise
            # A checkpointer that accepts no threads but the caller's shows at the first point.
            self._refuse(system, error)
            return None
        if self.store.lease is not None:
            uncertain = bool(system.commits) and system.commits[-1].status == "may have run"
            await self.store.lease.record(Journal(point_id, len(system.commits), uncertain))
        self._table.mark_stored()
        self._snapshots += snapshots
        self._parent_id = point_id
        return {"point": point_id, **facts}

    def _refuse(self, system: ParticleSystem, error: Exception) -> None:
        """Make no further points, and say so."""
        self._refused = True
        since = "from its input" if self._parent_id is None else "from the last durable point"
        note = excerpt(f"step {system.step}: no more durable points, a crash restarts the run {since} "
                       f"({type(error).__name__}: {error})", 400)  # fmt: skip
        system.notes.append(note)
        log(_log, logging.WARNING, "run.not_durable", "%(note)s", note=note)
