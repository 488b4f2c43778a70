"""A value that is computed once for any number of threads and event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from amc_agents.concurrency.threads import in_forked_process

T = TypeVar("T")


class Once(Generic[T]):
    """Computes a value at the first `get`; concurrent callers wait for it, and share its failure.

    After a failure, and after `drop`, the next `get` computes it again. An `asyncio.Lock` would not do: it belongs to a
    single event loop, and a critic may be used from several.

    Args:
        make: computes the value.
    """

    def __init__(self, make: Callable[[], Awaitable[T]]) -> None:
        self._make = make
        self._value: T | None = None
        self._start_anew()
        _all.add(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._pending: Future[None] | None = None

    @property
    def known(self) -> T | None:
        """The value; None: it was not computed yet, or was dropped."""
        return self._value

    async def get(self) -> T:
        """Return the value. Raises what `make` raises."""
        while True:
            with self._lock:
                if self._value is not None:
                    return self._value
                pending = self._pending
                if pending is None:
                    mine = self._pending = Future()
                    # From here on no waiter can cancel it.
                    mine.set_running_or_notify_cancel()
            if pending is None:
                return await self._first(mine)
            await asyncio.wrap_future(pending)

    def drop(self, value: T) -> None:
        """Forget the value, unless it was replaced already."""
        with self._lock:
            if self._value is value:
                self._value = None

    async def _first(self, mine: Future[None]) -> T:
        value, error = None, None
        try:
            value = await self._make()
            return value
        except Exception as caught:
            error = caught
            raise
        finally:
            with self._lock:
                self._value, self._pending = value, None
            # If the first caller was cancelled, a waiter computes the value.
            if error is None:
                mine.set_result(None)
            else:
                mine.set_exception(error)


def _start_all_anew() -> None:
    # The thread that was computing a value does not exist in the forked process.
    for once in [*_all]:
        once._start_anew()


_all: WeakSet[Once[Any]] = WeakSet()
in_forked_process(_start_all_anew)
