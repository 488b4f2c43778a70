"""List the durable points of a thread, from which a run can be replayed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from amc_agents.population.durable.points import points_thread


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
