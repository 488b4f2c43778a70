"""One persistent event loop in a thread of its own, for the sync entry points.

`graph.invoke` then works where a loop is running already (a notebook), and an async client that outlives one
call finds the same loop at the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from amc_agents.errors import ConfigurationError

T = TypeVar("T")

STOPPING_LIMIT_S = 10.0
"""Most seconds that an interrupted caller waits until its work has stopped."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_workers = 0


def run_in_background(work: Coroutine[Any, Any, T], *, n_workers: int) -> T:
    """Run a coroutine on the background loop and wait for its result.

    Args:
        work: what to run; it sees the caller's context variables.
        n_workers: threads that the loop must have for blocking tools and models, at the least.

    Raises:
        ConfigurationError: on the background loop itself, which would wait for itself.
    """
    loop = _background_loop(n_workers)
    if on_background_loop():
        work.close()
        raise ConfigurationError(
            "a sync call (invoke, stream, run) was made from a coroutine of the library's own event loop, which "
            "would wait for itself: use the async form there (ainvoke, astream, arun)"
        )
    tasks: list[asyncio.Task[T]] = []
    ended = threading.Event()

    def start() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(lambda _: ended.set())

    def stop() -> None:
        if tasks:
            tasks[0].cancel()
        else:  # Interrupted before the start.
            work.close()
            ended.set()

    try:
        loop.call_soon_threadsafe(start)
        ended.wait()
    except BaseException:
        # Ctrl-C in the caller stops the work. What it has open can be closed once it no longer runs.
        loop.call_soon_threadsafe(stop)
        ended.wait(STOPPING_LIMIT_S)
        raise
    return tasks[0].result()


def start_in_background(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine on the background loop without waiting for it."""
    asyncio.run_coroutine_threadsafe(work, _background_loop(1))


def on_background_loop() -> bool:
    """The caller runs on the background loop, which must not wait for itself."""
    return _loop is not None and _running_loop() is _loop


def _background_loop(n_workers: int) -> asyncio.AbstractEventLoop:
    global _loop, _workers
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="amc-agents", daemon=True).start()
        if n_workers > _workers:
            _workers = max(n_workers, 32)
            executor = ThreadPoolExecutor(_workers, thread_name_prefix="amc-agents")
            _loop.call_soon_threadsafe(_loop.set_default_executor, executor)
        return _loop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
