"""Save a population as a durable point, whenever its particles wait."""

from __future__ import annotations

import logging
import time
from typing import Any, cast

from langgraph.checkpoint.base import CheckpointMetadata

from amc_agents import smc
from amc_agents.logs import log, room_logger
from amc_agents.population.feature import Feature
from amc_agents.population.features.durable.interning import Memo, Table
from amc_agents.population.features.durable.lease import Journal
from amc_agents.population.features.durable.points import PointStore
from amc_agents.population.features.durable.records import dump_system
from amc_agents.population.system import ParticleSystem
from amc_agents.quoting import excerpt

_log = room_logger(__name__)


class DurablePoints(Feature):
    """The chain of points of one population.

    Args:
        store: where the points lie.
        table: the nodes of the points so far.
        parent_id: the last point; None: there is none.
        spent_s: seconds that the run has already taken, in a process that was killed.
    """

    name = "durable"

    def __init__(self, store: PointStore, table: Table, parent_id: str | None = None, spent_s: float = 0.0) -> None:
        self.store = store
        self._table = table
        self._parent_id = parent_id
        self._refused = False
        self._began = time.monotonic() - spent_s
        self._memo = Memo()
        self._snapshots: list[Any] = []
        """The saved states of worlds in the points so far."""

    @property
    def journals(self) -> bool:
        """Whether a commit call can be journaled so that no other caller repeats it."""
        return self.store.lease is not None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._began

    async def forget_commits(self) -> None:
        """Let the thread's next input start a new run, although this one made commit calls."""
        if self.store.lease is not None:
            await self.store.lease.record(Journal())

    def pauses_at(self, system: ParticleSystem) -> int | None:
        """Return the step of the next point, after which particles go on without being weighed."""
        every, steps = system.settings.durable_every, [each.steps for each in system.particles if each.can_step]
        return None if every is None or not steps else max(steps) + every

    async def on_pause(self, system: ParticleSystem, then: str) -> None:
        """Save the population, unless its particles have not started yet."""
        if any(each.past.saved or each.steps or not each.running for each in system.particles):
            await self.save(system, then)

    async def save(self, system: ParticleSystem, then: str) -> bool:
        """Save the population, and return whether it could be saved, as the run's notes say.

        After a crash it goes on with the verb `then`. It is durable when this returns. The agents of all running
        particles are stopped, and start again from their checkpoints.

        Raises:
            ThreadHeld: another call has taken the thread over.
        """
        stopped = system.stop
        if self._refused or system.runner.cut or (stopped is not None and stopped.abrupt):
            return False
        await system.runner.save_all(system.particles)
        if self.store.lease is not None:
            await self.store.lease.check()
        commits: Any = system.features.named("commits")
        n_commits, n_attempts = (0, 0) if commits is None else (len(commits.calls), commits.n_attempts)
        try:
            record = await dump_system(system, self._memo, self.elapsed_s)
            root = self._table.encode({"then": then, **record})
        except Exception as error:
            self._refuse(system, error)
            return False
        worlds = [particle["world"] or {} for particle in record["particles"]]
        snapshots = [
            world["snapshot"] for world in worlds if "snapshot" in world and world["snapshot"] not in self._snapshots
        ]
        metadata = cast(CheckpointMetadata, {"source": "loop", "step": system.step, "amc_commits": n_attempts})
        try:
            point_id = await self.store.write(self._parent_id, self._table.new, root, snapshots, metadata)
        except Exception as error:
            if self._parent_id is not None:
                raise
            # A checkpointer that accepts no threads but the caller's shows at the first point.
            self._refuse(system, error)
            return False
        if self.store.lease is not None:
            uncertain = commits is not None and commits.is_uncertain
            await self.store.lease.record(Journal(point_id, n_commits, uncertain))
        self._table.mark_stored()
        self._snapshots += snapshots
        self._parent_id = point_id
        system.outlet.channels["amc_point"] = {
            "point": point_id,
            "commits": n_commits,
            "step": max(system.step, max((each.steps for each in system.particles if each.can_step), default=0)),
            "ess": system.ess,
            "log_evidence": float(smc.log_evidence(system.weights)) if system.target.is_given else float("nan"),
        }
        return True

    def _refuse(self, system: ParticleSystem, error: Exception) -> None:
        """Make no further points, and say so."""
        self._refused = True
        since = "from its input" if self._parent_id is None else "from the last durable point"
        note = excerpt(f"step {system.step}: no more durable points, a crash restarts the run {since} "
                       f"({type(error).__name__}: {error})", 400)  # fmt: skip
        system.note(note)
        log(_log, logging.WARNING, "run.not_durable", "%(note)s", note=note)
