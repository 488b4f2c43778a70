"""Do work in a thread of its own, so that no agent waits for it: make spans, send feedback."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from amc_agents.logs import log

_log = logging.getLogger("amc_agents_telemetry")

INTERVAL_S = 1.0
"""Longest time in seconds until the thread takes up new work."""
STOPPING_LIMIT_S = 5.0
MOST_WAITING = 50_000
"""Number of waiting pieces of work from which on new ones are dropped."""
_RELIEVE_AFTER = 1_000
"""Number of pieces of work after which the exporter may catch up. Its queue holds 2,048 spans by default."""


_forks = 0
"""Number of forks between the first process and this one. To ask for the process's number is a system call."""


def _forked() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):  # Windows cannot fork.
    os.register_at_fork(after_in_child=_forked)


class Backlog:
    """Work that a thread does later, in order.

    Args:
        relieve: called by the thread from time to time, and waits until the exporter has caught up.
        interval_s: longest time in seconds until the thread takes up new work.
    """

    def __init__(self, relieve: Callable[[], Any], interval_s: float = INTERVAL_S) -> None:
        self._relieve, self._interval_s = relieve, interval_s
        self._waiting: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._starting = threading.Lock()
        self._started = -1
        """`_forks` when the thread was started; a forked process needs another thread."""
        self._stopped = False
        self._thread: threading.Thread | None = None
        self._work, self._now = threading.Event(), threading.Event()
        self._told = False
        """Whether the thread knows of new work; `_work` says the same, but to ask it is a call."""
        self._n_dropped = 0

    def add(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Do `work(*arguments)` later. Where too much waits, it is dropped and the loss is logged."""
        if self._stopped:
            work(*arguments)
            return
        if self._started != _forks:
            self._start()
        if len(self._waiting) >= MOST_WAITING:
            self._n_dropped += 1
            return
        self._waiting.append((work, arguments))
        if not self._told:
            self._tell()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the work so far is done; False: it was not done in time."""
        if self._stopped or self._started != _forks:
            return True
        done = threading.Event()
        self._waiting.append((done.set, ()))
        self._tell()
        self._now.set()
        return done.wait(timeout_s)

    def stop(self) -> None:
        """End the thread after the work so far."""
        self._stopped = True
        self._work.set()
        self._now.set()
        if self._thread is not None and self._started == _forks:
            self._thread.join(STOPPING_LIMIT_S)

    def _tell(self) -> None:
        self._told = True
        self._work.set()

    def _start(self) -> None:
        with self._starting:
            if self._started == _forks:
                return
            self._waiting.clear()  # In a forked process: the parent does this work.
            self._work, self._now = threading.Event(), threading.Event()
            self._told = False
            self._n_dropped = 0
            self._thread = threading.Thread(target=self._run, name="amc-telemetry", daemon=True)
            self._thread.start()
            self._started = _forks

    def _run(self) -> None:
        while not self._stopped:
            self._work.wait()
            self._now.wait(self._interval_s)
            self._now.clear()
            self._work.clear()
            self._told = False  # Before the work: what comes during it tells the thread again.
            self._do_all()

    def _do_all(self) -> None:
        done = 0
        while self._waiting:
            work, arguments = self._waiting.popleft()
            try:
                work(*arguments)
                done += 1
                if done % _RELIEVE_AFTER == 0:
                    self._relieve()
            except Exception as error:
                log(
                    _log,
                    logging.WARNING,
                    "telemetry.lost",
                    "a span or a feedback was lost: %(error)s: %(text)s",
                    error=type(error).__name__,
                    text=error,
                )
        if self._n_dropped:
            log(
                _log,
                logging.WARNING,
                "telemetry.dropped",
                "%(n)d spans or feedbacks were dropped: their receiver is too slow",
                n=self._n_dropped,
            )
            self._n_dropped = 0
