"""Run coroutines side by side, bounded and cancelled together; run a coroutine to its end despite cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from amc_agents.context import changed_context, particle_context

T = TypeVar("T")


@contextmanager
def at_most(limit: int | None) -> Iterator[None]:
    """Limit each `side_by_side` inside the block; None adds no limit."""
    outer = particle_context().max_concurrency
    with changed_context(max_concurrency=limit if outer is None else min(limit or outer, outer)):
        yield


async def side_by_side(*work: Coroutine[Any, Any, Any], limit: int | None = None) -> list[Any]:
    """Run coroutines concurrently and return their results in order.

    If a coroutine fails, or the caller is cancelled, the others are cancelled and waited for, and the error is raised.
    `asyncio.gather` leaves them running, and `asyncio.TaskGroup` wraps the error in a group.

    Args:
        work: the coroutines, of any result types.
        limit: maximum number that run at the same time; None: no limit. A smaller limit of `at_most` precedes it.
    """
    slots = asyncio.Semaphore(min(limit or len(work) or 1, particle_context().max_concurrency or len(work) or 1))

    async def in_a_slot(coroutine: Coroutine[Any, Any, Any]) -> Any:
        async with slots:
            return await coroutine

    tasks = [asyncio.ensure_future(in_a_slot(coroutine)) for coroutine in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        await _cancelled(tasks)
        raise
    finally:
        for coroutine in work:
            coroutine.close()  # A coroutine that was cancelled before it started would warn that it was never awaited.
        # An error keeps this frame alive, but not the frames of cancelled tasks, which may hold connections.
        tasks.clear()


async def _cancelled(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def was_cancelled() -> bool:
    """Return whether the current task was cancelled; else a `CancelledError` is the failure of what it awaits."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine; a cancellation of the caller takes effect only after it has finished."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
