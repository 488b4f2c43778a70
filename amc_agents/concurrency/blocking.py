"""Blocking calls with a time limit, in threads that do not delay the exit of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")


class BlockingCalls:
    """Runs blocking calls concurrently in daemon threads, from any event loop.

    A thread cannot be stopped from outside: a call that timed out continues until its client ends it. Nothing waits
    for it, whereas the threads of an executor are joined when the process exits.

    Args:
        name: name of the threads.
        max_concurrent: maximum number of concurrent calls per event loop.
        timeout: maximum duration of a call in seconds.
    """

    def __init__(self, name: str, max_concurrent: int, timeout: float) -> None:
        self._name, self._max_concurrent, self._timeout = name, max_concurrent, timeout
        self._limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, call: Callable[[], T], *, starting: Callable[[], None] = lambda: None) -> T:
        """Run a call with the caller's context variables and return its result.

        Args:
            call: the call.
            starting: called just before the call starts, after any wait for other calls.

        Raises:
            TimeoutError: the call took too long.
        """
        future: Future[T] = Future()
        # From here on the future cannot be cancelled; its waiters can.
        future.set_running_or_notify_cancel()
        context = copy_context()

        def work() -> None:
            try:
                result = context.run(call)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        async with self._limit():
            starting()
            threading.Thread(target=work, name=self._name, daemon=True).start()
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(future)

    def _limit(self) -> asyncio.Semaphore:
        # A semaphore belongs to a single event loop.
        return self._limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrent))
