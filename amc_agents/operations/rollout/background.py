"""Background work that never delays a call: a bounded queue per event loop, and a gate that gives way to calls."""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections import deque
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, Protocol
from weakref import WeakSet

from langchain_core.runnables import Runnable, RunnableConfig
from typing_extensions import override

from amc_agents.concurrency.background import background_loop, on_background_loop, run_in_background
from amc_agents.concurrency.gather import to_its_end

PATIENCE_S = 1.0
"""Maximum time that a node of a search waits for the calls in progress."""
TURN_S = 0.002
"""Minimum time between the starts of two nodes."""
LONGEST_PAUSE_S = 0.1
"""Maximum time between two looks at the calls in progress."""
ENDING_LIMIT_S = 5.0
"""Maximum time that `close` waits for cancelled work."""


class Job(Protocol):
    """Work to do after a call."""

    context: Context
    """The context in which it runs."""

    async def run(self) -> None:
        """Do the work; must not raise."""

    async def discard(self) -> None:
        """Release what the job holds, without doing the work."""


class Gate:
    """Counts the calls in progress, for which background work waits."""

    def __init__(self) -> None:
        self._calls = 0
        self._next_turn = 0.0
        self._lock = threading.Lock()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while the block runs."""
        with self._lock:
            self._calls += 1
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1

    async def give_way(self) -> None:
        """Wait until no call is in progress, for at most `PATIENCE_S`, and for a turn.

        Turns are short, so that a call that begins finds at most a node or two of a search at work.
        """
        loop, pause = asyncio.get_running_loop(), TURN_S
        until = loop.time() + PATIENCE_S
        while True:
            now = loop.time()
            turn = max(now, self._next_turn)
            self._next_turn = turn + TURN_S
            await asyncio.sleep(turn - now)
            if not self._calls or loop.time() >= until:
                return
            # Calls are on any thread or loop, so the wait polls, less and less often.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


class GivingWay(Runnable[Any, Any]):
    """A node of a search, which waits for the calls in progress before it runs."""

    def __init__(self, inner: Runnable[Any, Any], gate: Gate) -> None:
        self._inner, self._gate = inner, gate

    @override
    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._inner.invoke(input, config, **kwargs)

    @override
    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        await self._gate.give_way()
        return await self._inner.ainvoke(input, config, **kwargs)


class Queue:
    """The jobs of one event loop, done one after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.loop, self._most = loop, most
        self._jobs: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits."""
        return bool(self._jobs) or (self._task is not None and not self._task.done())

    def add(self, job: Job) -> bool:
        """Add a job; False if the queue is full or its loop is closed."""
        if len(self._jobs) >= self._most:
            return False
        self._jobs.append(job)
        try:
            self.loop.call_soon_threadsafe(self._start)
        except RuntimeError:
            return False
        return True

    async def end(self, timeout: float | None) -> None:
        """Wait for the jobs; after `timeout` seconds, cancel the running job and discard the others."""
        await asyncio.sleep(0)  # Jobs that were just added start first.
        task = self._task
        if task is not None and not task.done():
            await asyncio.wait([task], timeout=timeout)
            task.cancel()
            await asyncio.wait([task], timeout=ENDING_LIMIT_S)

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self.loop.create_task(self._work())

    async def _work(self) -> None:
        try:
            while self._jobs:
                job = self._jobs.popleft()
                await asyncio.create_task(job.run(), context=job.context)
        finally:
            while self._jobs:
                await to_its_end(self._jobs.popleft().discard())


class Background:
    """The queues of all event loops on which calls were made.

    The jobs of async calls run on the caller's loop, because clients of models cannot be shared between loops; those of
    sync calls run on the library's loop.

    Args:
        most: maximum number of jobs that wait, per loop.
        n_workers: minimum number of threads of the library's loop, for blocking tools and models.
    """

    def __init__(self, most: int, n_workers: int) -> None:
        self._n_workers = n_workers
        self._most, self._queues = most, dict[asyncio.AbstractEventLoop, Queue]()
        self._lock = threading.Lock()
        self._discarding: set[asyncio.Task[None]] = set()
        self.closed = False
        _all.add(self)

    @property
    def busy(self) -> bool:
        """Whether a job runs or waits, on any loop."""
        return any(queue.busy for queue in [*self._queues.values()])

    def add(self, job: Job) -> bool:
        """Run a job after the jobs that wait; False if it was refused, and then holds what it held."""
        loop = _running_loop() or background_loop(self._n_workers)
        with self._lock:
            if self.closed:
                return False
            for old in [each for each in self._queues if each.is_closed()]:
                del self._queues[old]
            queue = self._queues.setdefault(loop, Queue(loop, self._most))
        return queue.add(job)

    def discard(self, job: Job) -> None:
        """Release what a job holds that was not added."""
        loop = _running_loop() or background_loop(self._n_workers)

        def start() -> None:
            task = loop.create_task(job.discard())
            self._discarding.add(task)
            task.add_done_callback(self._discarding.discard)

        loop.call_soon_threadsafe(start)

    async def aclose(self, timeout: float | None = None) -> None:
        """Accept no more jobs, and wait for those of this loop and of loops in other threads."""
        self.closed = True
        await asyncio.gather(*(self._end(queue, timeout) for queue in [*self._queues.values()]))

    def close(self, timeout: float | None = None) -> None:
        """Like `aclose`, from sync code."""
        self.closed = True
        if any(not queue.loop.is_closed() for queue in self._queues.values()):
            run_in_background(self.aclose(timeout), n_workers=1)

    async def _end(self, queue: Queue, timeout: float | None) -> None:
        if queue.loop is asyncio.get_running_loop():
            await queue.end(timeout)
        elif queue.loop.is_running():
            ended: Awaitable[None] = asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(queue.end(timeout), queue.loop)
            )
            await ended


_all: WeakSet[Background] = WeakSet()


@atexit.register
def _close_all() -> None:
    for background in [*_all]:
        if not on_background_loop():
            with suppress(Exception):
                background.close(timeout=0.0)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
