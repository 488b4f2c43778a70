"""Blocking calls of other people's clients: waited for so long and no longer, and never in the way of an exit."""

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
    """Runs blocking calls in daemon threads, side by side, from any event loop.

    Nothing ends a thread from outside. A call that is given up goes on until its client ends it, and nobody waits for
    that: the threads of an executor would be joined when the process exits.

    Args:
        name: of the threads.
        max_concurrent: calls under way at the same time on one event loop.
        timeout: seconds that a call may take, from its start to its whole answer.
    """

    def __init__(self, name: str, max_concurrent: int, timeout: float) -> None:
        self._name, self._max_concurrent, self._timeout = name, max_concurrent, timeout
        self._limits: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, call: Callable[[], T]) -> T:
        """What the call gives, with the context variables of whoever asks.

        Raises:
            TimeoutError: it took too long.
        """
        future: Future[T] = Future()
        # From here on it cannot be cancelled; whoever waits for it can.
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
            threading.Thread(target=work, name=self._name, daemon=True).start()
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(future)

    def _limit(self) -> asyncio.Semaphore:
        # A semaphore belongs to one event loop.
        return self._limits.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._max_concurrent))
