"""Time limits of a run and of its parts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import TypeVar

from amc_agents.errors import TimeLimitExceeded

T = TypeVar("T")

CANCELLING_LIMIT_S = 5.0
"""Maximum time in seconds to wait for cancelled work; work that ignores its cancellation is then abandoned."""


async def within(
    limit_s: float | None,
    work: Awaitable[T],
    message: str,
    *,
    context: Context | None = None,
    spare: Callable[[], Awaitable[bool]] | None = None,
) -> T:
    """Wait for `work`, and cancel it after `limit_s` seconds.

    Args:
        limit_s: None for no limit.
        work: runs in its own task if it has a limit.
        message: of the error; names the work and the setting.
        context: context variables of the task; default: a copy of the caller's.
        spare: waits for a part of the work that must not be cancelled, and returns whether there was one; the limit
            then starts again.

    Raises:
        TimeLimitExceeded: `work` did not end in time.
    """
    if limit_s is None:
        return await work
    task = asyncio.create_task(_as_coroutine(work), context=context or copy_context())
    try:
        while True:
            await asyncio.wait([task], timeout=limit_s)
            if task.done():
                return task.result()
            if spare is None or not await spare():
                raise TimeLimitExceeded(message, limit_s)
    finally:
        await stop([task])


async def stop(tasks: list[asyncio.Task[T]]) -> None:
    """Cancel the running tasks and wait for their end; asyncio then reports no failure as unretrieved."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=CANCELLING_LIMIT_S)
    for task in tasks:
        task.add_done_callback(_retrieve)


class Deadline:
    """The moment at which a run must end.

    Args:
        limit_s: seconds from the start of the run; None for no deadline.
        spent_s: seconds that the run has already taken, in a process that was killed.
        of: the limit that it stands for, as `Run.stopped_by` names it.
    """

    def __init__(self, limit_s: float | None = None, spent_s: float = 0.0, of: str = "run_timeout") -> None:
        self.limit_s, self.of = limit_s, of
        self.passed = False
        """Whether it interrupted something."""
        self._at = None if limit_s is None else asyncio.get_running_loop().time() + limit_s - spent_s
        self._started = time.monotonic() - spent_s

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return time.monotonic() - self._started

    @asynccontextmanager
    async def cutting(self) -> AsyncIterator[None]:
        """Interrupt the body at the deadline without an error; check `passed` afterwards."""
        limit = asyncio.timeout_at(self._at)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            self.passed = True


async def _as_coroutine(work: Awaitable[T]) -> T:
    return await work


def _retrieve(task: asyncio.Task[T]) -> None:
    # Only the first failure is raised; this marks the others as retrieved.
    if not task.cancelled():
        task.exception()
