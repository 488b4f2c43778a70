"""Time limits of a run and of its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from contextvars import Context, copy_context
from typing import TypeVar

from amc_agents.errors import TimeLimitExceeded

T = TypeVar("T")

CANCELLING_LIMIT_S = 5.0
"""Most seconds that cancelled work is waited for; what ignores its cancellation is then left alone."""


async def within(limit_s: float | None, work: Awaitable[T], what: str, *, context: Context | None = None) -> T:
    """Wait for `work`, and cancel it after `limit_s` seconds.

    Args:
        limit_s: None for no limit.
        work: runs as a task of its own where there is a limit.
        what: names the work and its setting in the error.
        context: the context variables that the task runs in; default: a copy of the caller's.

    Raises:
        TimeLimitExceeded: `work` did not end in time.
    """
    if limit_s is None:
        return await work
    task = asyncio.create_task(_as_coroutine(work), context=context or copy_context())
    try:
        await asyncio.wait([task], timeout=limit_s)
        if task.done():
            return task.result()
        raise TimeLimitExceeded(what, limit_s)
    finally:
        await stop([task])


async def stop(tasks: list[asyncio.Task[T]]) -> None:
    """Cancel what is still running and wait until it has ended; no failure of a task is reported as lost."""
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
        limit_s: seconds from now; None for no deadline.
    """

    def __init__(self, limit_s: float | None = None) -> None:
        self.limit_s = limit_s
        self.passed = False
        """Something was cut off by it."""
        self._at = None if limit_s is None else asyncio.get_running_loop().time() + limit_s

    @asynccontextmanager
    async def cutting(self) -> AsyncIterator[None]:
        """Cut the body off at the deadline, without an error: look at `passed`."""
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
    # Nobody waits for the failures that come after the first.
    if not task.cancelled():
        task.exception()
