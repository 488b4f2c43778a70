"""Threads that do not hold the end of the process, and what a forked process has to make anew."""

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
"""What is to be run; None: the threads end."""


class DaemonThreads(ThreadPoolExecutor):
    """A pool whose threads the process does not wait for when it ends, so that a call that hangs cannot hold it.

    The threads of `concurrent.futures` are joined at exit. This is one of its executors by type alone, which is what an
    event loop asks of its default executor. In a forked process the pool is empty, and starts its threads anew.

    Args:
        most: threads, at most; they are started as they are needed.
        name: of the threads.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        self._most, self._name = most, name
        self._start_anew()
        _pools.add(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in one of the threads."""
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
        """Take no further calls. Nobody waits for those under way, whatever `wait` says."""
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
        # The threads of a pool that nobody holds any more end, too.
        weakref.finalize(self, self._calls.put, None).atexit = False


def in_forked_process(start_anew: Callable[[], None]) -> None:
    """Call a function in every process that is forked from this one, where no thread but the forking one lives on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=start_anew)


def lock_across_forks() -> threading.Lock:
    """A lock of a module. A fork waits for it: no forked process finds it held by a thread that is not there."""
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
        # Nothing of the call is held until the next one.
        del call, future, run
        idle.release()
    calls.put(None)


def _empty_pools() -> None:
    for pool in [*_pools]:
        pool._start_anew()


_pools: weakref.WeakSet[DaemonThreads] = weakref.WeakSet()
in_forked_process(_empty_pools)
