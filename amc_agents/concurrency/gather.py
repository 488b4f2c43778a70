"""Run work side by side, to its end, with a time limit in a thread, once, or held back after a rate limit.

A `RateGate` holds back all requests after a server answered that they are too many. Every request that passes the same
gate waits until it opens: after the time that the server asks for (`Retry-After`), or else after 1, 2, 4, ... at most
60 seconds, each with a random delay of up to half of that. When a server has refused all requests for `PATIENCE_S`
seconds, the refusal is an error.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from amc_agents.concurrency.background import in_forked_process
from amc_agents.context import changed_context, particle_context
from amc_agents.logs import log, room_logger

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


_log = room_logger(__name__)

PATIENCE_S = 300.0
"""Maximum time in seconds without a request that succeeds."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_JITTER = 0.5
"""Maximum random delay, as a share of the pause."""
_SILENT_S, _REPORT_EVERY_S = 5.0, 30.0
"""A wait that is shorter is not logged; a longer wait is logged at this interval."""
_TOO_MANY = (429, 529)
"""Too many requests; overloaded (Anthropic)."""
_MOST_STALE = 1000
"""Maximum number of connections of an ended event loop that the clients of a run may still hold."""


class RateGate:
    """Shared by the requests of a run, of a decision or to a server. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opens_at = self._pause = 0.0
        self._refused_since: float | None = None
        self._n_pauses = self._n_stale = 0
        self._reported_at = -_REPORT_EVERY_S

    def refused(self, error: BaseException) -> bool:
        """Close the gate if an error says that there are too many requests; return whether to repeat the request.

        A request that met a connection of an earlier `asyncio.run` is repeated at once: its client has now dropped it.
        """
        if _is_of_ended_loop(error):
            self._n_stale += 1
            return self._n_stale <= _MOST_STALE
        limit = rate_limit_of(error)
        return limit is not None and self.close(limit.get("retry-after"))

    def close(self, retry_after: float | None = None) -> bool:
        """Close the gate.

        Args:
            retry_after: seconds that the server asks for; None: it asks for nothing.

        Returns:
            Whether the request shall be repeated after the pause; False if requests were refused for too long.
        """
        with self._lock:
            now = time.monotonic()
            self._refused_since = self._refused_since or now
            if now - self._refused_since + (retry_after or 0.0) > PATIENCE_S:
                return False
            if retry_after is not None:
                self._pause = retry_after
            elif now >= self._opens_at:  # Concurrent refusals are one wave.
                self._pause = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2**self._n_pauses)
                self._n_pauses += 1
            else:
                return True
            self._opens_at = max(self._opens_at, now + self._pause)
            self._report(now, now - self._refused_since)
            return True

    def _report(self, now: float, refused_s: float) -> None:
        """Log what is waited for, unless it is a short wait or was logged just now."""
        if refused_s + self._pause < _SILENT_S or now - self._reported_at < _REPORT_EVERY_S:
            return
        self._reported_at = now
        log(
            _log,
            logging.WARNING,
            "rate_limit.waits",
            "the server answers that there are too many requests (429), for %(refused_s)d s now: the next request is "
            "made in %(pause_s)d s, and after %(patience_s)d s without an answer the refusal is an error",
            refused_s=round(refused_s),
            pause_s=round(self._pause),
            patience_s=round(PATIENCE_S),
        )

    def succeeded(self) -> None:
        """Note that a request was answered."""
        if self._refused_since is not None:
            with self._lock:
                self._refused_since, self._n_pauses = None, 0

    @property
    def wait_s(self) -> float:
        """Seconds to wait before the next request, with a random delay; 0 if the gate is open."""
        left = self._opens_at - time.monotonic()
        return 0.0 if left <= 0 else left + random.uniform(0, _JITTER * self._pause)

    @property
    def opens_in_s(self) -> float:
        """Seconds until the gate opens; 0 if it is open."""
        return max(0.0, self._opens_at - time.monotonic())

    async def passed(self) -> None:
        """Wait until the gate is open."""
        while (seconds := self.wait_s) > 0:
            await asyncio.sleep(seconds)


def current_gate() -> RateGate | None:
    """Return the gate of this context."""
    gate: RateGate | None = particle_context().gate
    return gate


@contextmanager
def gated(gate: RateGate) -> Iterator[RateGate]:
    """Use a gate for the requests inside the block, unless the context has one; yield the gate in use."""
    used = current_gate() or gate
    with changed_context(gate=used):
        yield used


async def politely(request: Callable[[], Awaitable[T]]) -> T:
    """Make a request when the context's gate is open, and again if it is refused as too many."""
    gate = current_gate() or RateGate()
    while True:
        await gate.passed()
        try:
            answer = await request()
        except Exception as error:  # Each provider's package has its own.
            if not gate.refused(error):
                raise
        else:
            gate.succeeded()
            return answer


def rate_limit_of(error: BaseException | None) -> dict[str, float] | None:
    """Return the server's wish ("retry-after", in seconds) if an error or its cause refuses too many requests.

    The errors of providers' clients have a `status_code`, and a `response` with `headers`. A quota that is used up is
    not a rate limit.
    """
    for _ in range(5):
        if error is None:
            return None
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        if status in _TOO_MANY and getattr(error, "code", None) != "insufficient_quota":
            seconds = retry_after_of(getattr(getattr(error, "response", None), "headers", None) or {})
            return {} if seconds is None else {"retry-after": seconds}
        error = error.__cause__ or error.__context__
    return None


def _is_of_ended_loop(error: BaseException | None) -> bool:
    for _ in range(5):
        if isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
            return True
        error = error and (error.__cause__ or error.__context__)
    return False


def retry_after_of(headers: Mapping[str, Any]) -> float | None:
    """Seconds to wait by the headers `Retry-After-Ms` and `Retry-After`, a number or a date; None if invalid."""
    milliseconds, text = headers.get("retry-after-ms", ""), str(headers.get("retry-after", "")).strip()
    for given, unit in ((milliseconds, 1000.0), (text, 1.0)):
        try:
            seconds = float(given) / unit
        except (TypeError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError, OverflowError):
        return None
