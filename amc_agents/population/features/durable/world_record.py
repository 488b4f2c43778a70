"""The worlds of particles in a durable point: a snapshot, or the actions that lead there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from amc_agents.errors import ReplayDivergence
from amc_agents.logs import log, room_logger
from amc_agents.population.features.durable.interning import Memo
from amc_agents.quoting import quoted
from amc_agents.runtime.world import RecordingWorld, Worlds, make_world, start_world
from amc_agents.types import Environment, Restorable, Task, TimeStep

_log = room_logger(__name__)


def can_be_restored(world: RecordingWorld) -> bool:
    """Return whether a world can be brought back after a crash: it is `Restorable`, or its actions can be replayed."""
    return isinstance(world.inner, (Restorable, Environment))


async def dump_world(world: RecordingWorld, *, at_rest: bool, memo: Memo) -> dict[str, Any]:
    """Save a world and return a record of it.

    Args:
        world: the world.
        at_rest: whether its particle has ended, so that its last snapshot is still right.
        memo: the descriptions of actions and answers, which forks share.
    """
    record: dict[str, Any] = {"flags": (world.ended, world.truncated, float(world.pending_reward))}
    if isinstance(world.inner, Restorable):
        if world.snapshot is None or not at_rest:
            world.snapshot = await world.inner.snapshot()
        return {**record, "snapshot": world.snapshot}
    return {**record, "first": _dump_answer(world.first), "past": [memo.of(event, _dump_event) for event in world.past]}


async def load_world(
    dumped: Mapping[str, Any], make: Callable[[], Any], worlds: Worlds
) -> tuple[RecordingWorld, Task | None]:
    """Restore a world.

    Args:
        dumped: what `dump_world` returned.
        make: creates a world like those at the start of the run.
        worlds: closes the world at the end of the run.

    Raises:
        ReplayDivergence: a replayed action was answered differently than in the record.
        WorldError: the snapshot is missing or damaged.
    """
    if "snapshot" in dumped:
        world, task = await make_world(make, worlds)
        assert isinstance(world.inner, Restorable)
        await world.inner.restore(dumped["snapshot"])
        world.snapshot = dumped["snapshot"]
    else:
        world, task = await _replayed(dumped, make, worlds)
    world.ended, world.truncated, world.pending_reward = dumped["flags"]
    return world, task


async def _replayed(
    dumped: Mapping[str, Any], make: Callable[[], Any], worlds: Worlds
) -> tuple[RecordingWorld, Task | None]:
    """Repeat the resets, forks and actions that led to a world, and check each answer."""
    world, task = await start_world(make, worlds)
    _check(0, "", dumped["first"], world.first)
    n_steps = 0
    for event in dumped["past"]:
        if isinstance(event, int):
            fork = await world.fork(event)
            await world.close()
            world = fork
            continue
        n_steps += 1
        action, answer = event
        _check(n_steps, action, answer, await world.step(action))
    return world, task


async def release(snapshots: Iterable[Any], world: Restorable) -> None:
    """Delete saved states, which no point needs any more.

    Args:
        snapshots: the saved states.
        world: of the same kind as the worlds that made them.
    """
    for snapshot in snapshots:
        try:
            await world.release(snapshot)
        except Exception as error:
            log(
                _log,
                logging.WARNING,
                "world.snapshot_left",
                "the snapshot %(snapshot)s could not be deleted: %(error)s: %(text)s",
                snapshot=f"{quoted(snapshot, 100)}",
                error=type(error).__name__,
                text=error,
            )


def _check(step: int, action: str, recorded: Any, answer: TimeStep | None) -> None:
    actual = _dump_answer(answer)
    if actual != recorded:
        observations = (recorded or ("",))[0], (actual or ("",))[0]
        differ = observations[0] != observations[1]
        raise ReplayDivergence(step, action, *(observations if differ else (repr(recorded), repr(actual))))


def _dump_event(event: int | tuple[str, TimeStep]) -> Any:
    return event if isinstance(event, int) else (event[0], _dump_answer(event[1]))


def _dump_answer(answer: TimeStep | None) -> Any:
    if answer is None:
        return None
    return str(answer.observation), float(answer.reward), bool(answer.terminated), bool(answer.truncated)
