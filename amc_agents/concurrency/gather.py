"""Run work side by side, to its end, with a time limit in a thread, or once for any number of event loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from amc_agents.concurrency.background import in_forked_process
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
