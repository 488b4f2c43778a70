"""Threads that do not delay the exit of the process, and state that a forked process resets."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_Calls = SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
"""Queued calls; None: the threads end."""


class DaemonThreads(ThreadPoolExecutor):
    """A pool of daemon threads: the process does not wait for them at exit, so a call that hangs cannot block it.

    The threads of `concurrent.futures` are joined at exit. The base class serves only the type check of an event loop's
    default executor. In a forked process the pool is empty and starts new threads.

    Args:
        most: maximum number of threads; they are started on demand.
        name: name of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        self._most, self._name = most, name
        self._start_anew()
        _pools.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in a thread of the pool."""
        future: Future[T] = Future()
        with self._submitting:
            if self._ended:
                raise RuntimeError("this pool of threads was shut down")
            self._calls.put((future, partial(fn, *args, **kwargs)))
            if not self._idle.acquire(blocking=False) and self._started < self._most:
                self._started += 1
                thread = threading.Thread(target=_work, args=(self._calls, self._idle), name=self._name, daemon=True)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse further calls. Running calls are not waited for, even with `wait`."""
        with self._submitting:
            self._ended = True
            while cancel_futures and not self._calls.empty():
                if (call := self._calls.get()) is not None:
                    call[0].cancel()
            self._calls.put(None)

    def _start_anew(self) -> None:
        self._submitting = threading.Lock()
        self._calls: _Calls = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._ended = False
        # The threads end when the pool is garbage-collected.
        weakref.finalize(self, self._calls.put, None).atexit = False


def in_forked_process(start_anew: Callable[[], None]) -> None:
    """Register a function to call in every forked process, where only the forking thread exists."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=start_anew)


def lock_across_forks() -> threading.Lock:
    """Return a lock that a fork waits for, so that it is never held by a missing thread in the forked process."""
    lock = threading.Lock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
    return lock


def _work(calls: _Calls, idle: threading.Semaphore) -> None:
    while (call := calls.get()) is not None:
        future, run = call
        if future.set_running_or_notify_cancel():
            try:
                result = run()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        # Release the call's objects before waiting for the next call.
        del call, future, run
        idle.release()
    calls.put(None)


def _empty_pools() -> None:
    for pool in [*_pools]:
        pool._start_anew()


_pools: weakref.WeakSet[DaemonThreads] = weakref.WeakSet()
in_forked_process(_empty_pools)
