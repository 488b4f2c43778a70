"""Limits of rate and concurrency per key. A refused request is told when to come back, and never waits here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from amc_agents_gateway.config import KeyTable
from amc_agents_gateway.errors import LIMIT, ApiError

WINDOW_S = 60.0
"""Length of the window in which requests are counted, in seconds."""


class Admission:
    """Admits the requests of a key.

    Args:
        table: the key's limits.
        clock: current time in seconds.
    """

    def __init__(self, table: KeyTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._most = table.requests_per_minute, table.max_concurrent
        self._clock = clock
        self._admitted: deque[float] = deque()
        self.in_progress = 0
        """Number of admitted requests that have not ended."""

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Admit a request for the duration of a block.

        Raises:
            ApiError: 429; a limit is reached. A refused request does not count.
        """
        if self._most is not None and self.in_progress >= self._most:
            message = f"your key allows {self._most} requests at the same time: wait until one has ended"
            raise ApiError(429, message, type=LIMIT, code="concurrency_limit_exceeded", retry_after=1.0)
        self._count()
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1

    @property
    def headers(self) -> dict[str, str]:
        """OpenAI's headers on the rate limit; empty without a limit."""
        if self._rate is None:
            return {}
        self._forget()
        left = self._rate - len(self._admitted)
        return {"x-ratelimit-limit-requests": str(self._rate), "x-ratelimit-remaining-requests": str(left)}

    def _count(self) -> None:
        if self._rate is None:
            return
        now = self._forget()
        if len(self._admitted) >= self._rate:
            wait = self._admitted[0] + WINDOW_S - now
            message = f"your key allows {self._rate} requests per minute: try again in {wait:.0f} s"
            raise ApiError(429, message, type=LIMIT, code="rate_limit_exceeded", retry_after=wait)
        self._admitted.append(now)

    def _forget(self) -> float:
        """Forget the requests before the window, and return the current time."""
        now = self._clock()
        while self._admitted and now - self._admitted[0] >= WINDOW_S:
            self._admitted.popleft()
        return now
