"""Read and write the points of a population in the checkpointer of the graph.

They lie in a thread of their own, so that they can be deleted without the user's thread. Each point is a checkpoint
with the nodes that its ancestors lack; the checkpointer links it to its parent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointMetadata, CheckpointTuple, empty_checkpoint

from amc_agents.errors import AgentContractError
from amc_agents.population.features.durable.interning import Node, Table
from amc_agents.population.features.durable.lease import Lease
from amc_agents.population.saver import ForkSaver

_CHANNEL = "amc_point"
NO_CHECKPOINTS = "exit"
"""Durability with which LangGraph writes no checkpoint before the end of a call."""


@dataclass(frozen=True)
class Point:
    """A point as it was read."""

    id: str
    table: Table
    root: int
    """Key of the population's record in the table."""


@dataclass
class PointStore:
    """The points of one population, in their thread."""

    saver: BaseCheckpointSaver[Any]
    thread_id: str
    asynchronous: bool
    """Whether the graph is called by its async methods, and so the saver's async methods are used."""
    outer_checkpoint_id: str | None
    """The graph's checkpoint from which the current node runs."""
    nested: bool
    """Whether the graph is a node of another graph."""
    replays: bool
    """Whether the call names the checkpoint from which it goes on."""
    lease: Lease | None = None
    """The call's right to run the thread; None: the checkpointer cannot keep one."""

    async def write(
        self, parent_id: str | None, nodes: list[Node], root: int, snapshots: list[Any], metadata: CheckpointMetadata
    ) -> str:
        """Store a point and return its id; it is durable afterwards.

        Args:
            parent_id: the point before; None: there is none.
            nodes: the nodes that its ancestors lack.
            root: key of the population's record.
            snapshots: the saved states of worlds that its ancestors lack.
            metadata: of the checkpoint.
        """
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = {_CHANNEL: {"nodes": nodes, "root": root, "snapshots": snapshots}}
        # Some savers store values by version: the version must differ in each point of the thread.
        checkpoint["channel_versions"] = {_CHANNEL: checkpoint["id"]}
        arguments = self._config(parent_id), checkpoint, metadata, checkpoint["channel_versions"]
        if self.asynchronous:
            await self.saver.aput(*arguments)
        else:
            await asyncio.to_thread(self.saver.put, *arguments)
        return checkpoint["id"]

    async def read(self, point_id: str | None) -> Point | None:
        """Read a point and its ancestors; None: the newest. None is returned if the point was deleted."""
        chain, saved = [], await self._get(point_id)
        if saved is None:
            return None
        newest = saved
        while saved is not None:
            chain.append(saved.checkpoint["channel_values"][_CHANNEL])
            parent = saved.parent_config
            saved = None if parent is None else await self._get(parent["configurable"]["checkpoint_id"])
        nodes = [node for part in reversed(chain) for node in part["nodes"]]
        return Point(newest.checkpoint["id"], Table(self.saver.serde, nodes), chain[0]["root"])

    async def read_current(self, point_id: str | None) -> Point | None:
        """Read the point of the graph's current checkpoint, or a newer point, made before the process was killed.

        The newest point is the one that the thread's record names: a caller that lost the thread may have left others.
        A point from before a commit call is never read, because the call would be made again.

        Args:
            point_id: the point that the checkpoint names; None: none.

        Raises:
            AgentContractError: the call replays a checkpoint from before a commit call.
        """
        head = None if self.lease is None else self.lease.journal.head
        newest = await self._get(head)
        if newest is None:
            return None if point_id is None or head is not None else await self.read(point_id)
        named = None if point_id is None else await self._get(point_id)
        forgets_commits = _n_commits(newest) > _n_commits(named)
        if forgets_commits and self.replays:
            raise AgentContractError(_REPLAYS_COMMITS)
        is_named = head is not None and not self.replays
        if is_named or forgets_commits or newest.checkpoint["id"] > (self.outer_checkpoint_id or ""):
            point_id = newest.checkpoint["id"]
        return None if point_id is None else await self.read(point_id)

    async def snapshots(self) -> list[Any]:
        """Return the saved states of worlds of all points."""
        config = self._config(None)
        if self.asynchronous:
            points = [saved async for saved in self.saver.alist(config)]
        else:
            points = await asyncio.to_thread(lambda: list(self.saver.list(config)))
        return [snapshot for saved in points for snapshot in saved.checkpoint["channel_values"][_CHANNEL]["snapshots"]]

    async def delete(self) -> None:
        """Delete all points."""
        if self.asynchronous:
            await self.saver.adelete_thread(self.thread_id)
        else:
            await asyncio.to_thread(self.saver.delete_thread, self.thread_id)

    async def _get(self, point_id: str | None) -> CheckpointTuple | None:
        config = self._config(point_id)
        if self.asynchronous:
            return await self.saver.aget_tuple(config)
        return await asyncio.to_thread(self.saver.get_tuple, config)

    def _config(self, point_id: str | None) -> RunnableConfig:
        configurable = {"thread_id": self.thread_id, "checkpoint_ns": ""}
        return {"configurable": configurable if point_id is None else {**configurable, "checkpoint_id": point_id}}


def points_thread(thread_id: str, namespace: str = "") -> str:
    """Return the thread in which the durable points of a conversation's current run lie.

    Args:
        thread_id: the conversation's thread.
        namespace: checkpoint namespace of the `amc` graph, if it is a node of another graph.
    """
    return f"{thread_id}/amc" + (f"/{namespace}" if namespace else "")


def store_of(config: RunnableConfig, *, asynchronous: bool, replays: bool, lease: Lease | None) -> PointStore | None:
    """Return the store of the run's points; None: the run is not checkpointed as it goes.

    Args:
        config: of a node of the graph.
        asynchronous: whether the graph is called by its async methods.
        replays: whether the call names the checkpoint from which it goes on.
        lease: the call's right to run the thread.
    """
    configurable = config.get("configurable", {})
    saver = configurable.get("__pregel_checkpointer")
    if (
        not isinstance(saver, BaseCheckpointSaver)
        or isinstance(saver, ForkSaver)  # A particle of another population, which has its own points.
        or "thread_id" not in configurable
        or configurable.get("__pregel_durability") == NO_CHECKPOINTS
    ):
        return None
    namespace = configurable.get("checkpoint_ns", "").rpartition("|")[0]
    return PointStore(
        saver,
        points_thread(str(configurable["thread_id"]), namespace),
        asynchronous=asynchronous,
        outer_checkpoint_id=configurable.get("checkpoint_map", {}).get(namespace),
        nested=bool(namespace),
        replays=replays,
        lease=lease,
    )


def _n_commits(point: CheckpointTuple | None) -> int:
    metadata: Mapping[str, Any] = {} if point is None else point.metadata
    return int(metadata.get("amc_commits", 0))


_REPLAYS_COMMITS = (
    "the checkpoint is from before a commit call of this run, and a replay would make the call again: replay a later "
    "checkpoint, or start a new run in another thread"
)


@dataclass(frozen=True, slots=True)
class DurablePoint:
    """A point of a run to which a thread can go back."""

    step: int
    """Number of steps of the live particles."""
    ess: float
    """Effective sample size of the particles after a resampling, or after a weighing without resampling."""
    log_evidence: float
    """log Z so far; NaN if beta is chosen from the particles' own values."""
    config: RunnableConfig
    """`graph.invoke(None, point.config)` replays the run from here."""


def list_points(saver: BaseCheckpointSaver[int], config: RunnableConfig) -> list[DurablePoint]:
    """Return the durable points of a thread, newest first.

    Args:
        saver: the graph's checkpointer.
        config: names the thread.
    """
    return _points(saver.list(_thread(config)), saver.list(_points_of(config)))


async def alist_points(saver: BaseCheckpointSaver[int], config: RunnableConfig) -> list[DurablePoint]:
    """Like `list_points`."""
    checkpoints = [saved async for saved in saver.alist(_thread(config))]
    return _points(checkpoints, [saved async for saved in saver.alist(_points_of(config))])


def _points(checkpoints: Iterable[CheckpointTuple], stored: Iterable[CheckpointTuple]) -> list[DurablePoint]:
    present = {saved.checkpoint["id"] for saved in stored}
    # Of the checkpoints that name a point, the first was made right after it. The listing is newest first.
    first: dict[str, tuple[dict[str, float], RunnableConfig]] = {}
    for saved in checkpoints:
        point = saved.checkpoint["channel_values"].get("amc_point")
        if point is not None and point["point"] in present:
            first.pop(point["point"], None)
            first[point["point"]] = point, saved.config
    return [
        DurablePoint(int(point["step"]), point["ess"], point["log_evidence"], config)
        for point, config in first.values()
    ]


def _thread(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": config["configurable"]["thread_id"], "checkpoint_ns": ""}}


def _points_of(config: RunnableConfig) -> RunnableConfig:
    return {"configurable": {"thread_id": points_thread(str(config["configurable"]["thread_id"])), "checkpoint_ns": ""}}
