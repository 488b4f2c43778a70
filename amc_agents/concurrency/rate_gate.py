"""A gate that holds back all requests after a server answered that they are too many.

Every request that passes the same gate waits until it opens: after the time that the server asks for (`Retry-After`),
or else after 1, 2, 4, ... at most 60 seconds, each with a random delay of up to half of that. When a server has refused
all requests for `PATIENCE_S` seconds, the refusal is an error.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from amc_agents.context import changed_context, particle_context
from amc_agents.logs import log, room_logger

_log = room_logger(__name__)
T = TypeVar("T")

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
