"""What a rollout keeps of its calls: their duration and cost, and durable records in an SQLite file."""

from __future__ import annotations

import atexit
import json
import math
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from inspect import signature
from numbers import Real
from pathlib import Path
from typing import Any
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel

from amc_agents.concurrency.background import DaemonThreads, in_forked_process, lock_across_forks
from amc_agents.context import change_context
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.population.features.watchers import ignore_runs, listening
from amc_agents.prices import Rates, cost
from amc_agents.quoting import quoted
from amc_agents.run import Run
from amc_agents.runtime.metering import PolicyMeter, count_requests, counting_requests, policy_meter
from amc_agents.types import plain
from amc_agents.usage import Meter, Usage, metering

FILE = "rollout.sqlite"
VERSION = 1
MOST_WAITING = 10_000
"""Maximum number of writes that wait for the disk; further ones are dropped and counted."""

_PREPARATIONS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS calls (id TEXT PRIMARY KEY, started REAL NOT NULL, body TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS outcomes (id TEXT PRIMARY KEY, value REAL NOT NULL, joined REAL NOT NULL)",
    "CREATE TABLE IF NOT EXISTS counted (place INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, body TEXT NOT NULL)",
)


_lock = lock_across_forks()


class Records:
    """The records in a folder.

    Threads may share an object, and so may a process and its forks. Every method is one transaction.

    Args:
        folder: created if it does not exist, unless `must_exist`.
        kind: "shadow" or "canary"; a folder holds records of one kind.
        must_exist: refuse a folder without records.

    Raises:
        CheckpointError: the folder cannot be used, or holds something else.
    """

    def __init__(self, folder: str | Path, kind: str, *, must_exist: bool = False) -> None:
        self.folder, self.path = Path(folder), Path(folder) / FILE
        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._parents: list[sqlite3.Connection | None] = []
        if must_exist and not self.path.exists():
            raise CheckpointError(f"{folder} has no {FILE}: give the folder= of {kind}(...)")
        recorded = self.fact_or("format", {"kind": kind, "version": VERSION})
        if recorded != {"kind": kind, "version": VERSION}:
            raise CheckpointError(
                f"{self.path} holds records of {recorded}, expected a {kind} of version {VERSION}: choose another "
                "folder"
            )

    def fact(self, name: str) -> Any:
        """Return a fact; None: unknown."""
        with self._open() as connection:
            row = connection.execute("SELECT value FROM facts WHERE name = ?", [name]).fetchone()
        return None if row is None else json.loads(row[0])

    def set_fact(self, name: str, value: Any) -> None:
        """Replace a fact."""
        with self._open() as connection:
            connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", [name, json.dumps(plain(value))])

    def fact_or(self, name: str, value: Any) -> Any:
        """Return a fact, which becomes `value` if it is unknown. The first of several processes decides."""
        with self._open() as connection:
            connection.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", [name, json.dumps(plain(value))])
        return self.fact(name)

    def add_to(self, name: str, amounts: Mapping[str, int]) -> None:
        """Add to counters, which start at 0."""
        with self._open() as connection:
            for counter, amount in amounts.items():
                connection.execute(
                    "INSERT INTO facts VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET "
                    "value = CAST(value AS INTEGER) + CAST(excluded.value AS INTEGER)",
                    [f"{name}.{counter}", str(amount)],
                )

    def counters(self, name: str) -> dict[str, int]:
        """Return the counters of a name."""
        with self._open() as connection:
            rows = connection.execute("SELECT name, value FROM facts WHERE name LIKE ?", [f"{name}.%"]).fetchall()
        return {row[0].removeprefix(f"{name}."): int(row[1]) for row in rows}

    def add_call(self, run_id: str, started: float, body: Mapping[str, Any]) -> None:
        """Add a call, or add to what is known of it."""
        with self._open() as connection:
            known = connection.execute("SELECT started, body FROM calls WHERE id = ?", [run_id]).fetchone()
            if known is not None:
                started, body = known[0], {**json.loads(known[1]), **body}
            text = json.dumps(plain(body), allow_nan=False)
            connection.execute("INSERT OR REPLACE INTO calls VALUES (?, ?, ?)", [run_id, started, text])

    def calls(self) -> list[dict[str, Any]]:
        """Return all calls by their start, with the keys `id` and `started`."""
        with self._open() as connection:
            rows = connection.execute("SELECT id, started, body FROM calls ORDER BY started, rowid").fetchall()
        return [{"id": run_id, "started": started, **json.loads(body)} for run_id, started, body in rows]

    def add_outcomes(self, outcomes: Mapping[str, float], bounds: tuple[float, float] | None = None) -> None:
        """Add or replace outcomes by the id of a run or of a thread. If one is invalid (`check_outcomes`), none is."""
        self.check_outcomes(outcomes, bounds)
        with self._open() as connection:
            rows = [(str(name), float(value), time.time()) for name, value in outcomes.items()]
            connection.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?)", rows)

    @staticmethod
    def check_outcomes(outcomes: Mapping[str, float], bounds: tuple[float, float] | None = None) -> None:
        """Check that outcomes are finite numbers within the bounds.

        Raises:
            ConfigurationError: an outcome is not.
        """
        low, high = bounds or (-math.inf, math.inf)
        for name, value in outcomes.items():
            if not (isinstance(value, Real) and math.isfinite(value) and low <= value <= high):
                raise ConfigurationError(
                    f"the outcome of {quoted(name, 80)} is {quoted(value, 40)}, expected a number from {low:g} to "
                    f"{high:g}: the argument outcomes=(low, high) declares the range"
                )

    def outcomes(self) -> dict[str, float]:
        """Return {id: outcome}."""
        with self._open() as connection:
            return dict(connection.execute("SELECT id, value FROM outcomes").fetchall())

    def count(self, units: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """Append units, skip those that are counted already, and return all in the order of counting."""
        with self._open() as connection:
            connection.executemany(
                "INSERT OR IGNORE INTO counted (key, body) VALUES (?, ?)",
                [(key, json.dumps(plain(body), allow_nan=False)) for key, body in units],
            )
            rows = connection.execute("SELECT key, body FROM counted ORDER BY place").fetchall()
        return [{"key": key, **json.loads(body)} for key, body in rows]

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with _lock:
            connection, self._connection = self._connection, None
            if connection is not None and self._process == os.getpid():
                connection.close()

    def __del__(self) -> None:
        # Without the lock, which the interrupted code may hold.
        connection: sqlite3.Connection | None = getattr(self, "_connection", None)
        if connection is not None and self._process == os.getpid():
            connection.close()

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection within one transaction, which begins by locking the file for other writers."""
        with _lock:
            try:
                connection = self._connected()
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
            except (OSError, sqlite3.Error) as error:
                raise CheckpointError(
                    f"{self.path} cannot be used ({error}): choose a folder on a local, writable disk"
                ) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None or self._process != os.getpid():  # A fork must not use its parent's connection.
            self.folder.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(self.path, timeout=60.0, isolation_level=None, check_same_thread=False)
            for statement in _PREPARATIONS:
                connection.execute(statement)
            self._parents.append(self._connection)
            self._connection, self._process = connection, os.getpid()
        return self._connection


class Writer:
    """Writes records in a thread, so that no call waits for the disk.

    A failure is counted, and never raised in the call that it belongs to.
    """

    def __init__(self) -> None:
        self.dropped = 0
        """Number of writes that failed, or found the queue full."""
        self.last_error: str | None = None
        self._start_anew()
        _writers.add(self)

    def submit(self, write: Callable[[], object]) -> None:
        """Run a write soon."""
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                self.dropped += 1
                return
            future = self._thread.submit(self._attempt, write)
            self._waiting.add(future)
        future.add_done_callback(self._finished)

    def flush(self, timeout: float | None = None) -> None:
        """Wait for the writes so far."""
        with self._lock:
            waiting = [*self._waiting]
        for future in waiting:
            future.result(timeout)

    def _attempt(self, write: Callable[[], object]) -> None:
        try:
            write()
        except Exception as error:
            self.dropped += 1
            self.last_error = f"{type(error).__name__}: {error}"

    def _finished(self, future: Future[None]) -> None:
        with self._lock:
            self._waiting.discard(future)

    def _start_anew(self) -> None:
        self._lock = threading.RLock()
        self._waiting: set[Future[None]] = set()
        self._thread = DaemonThreads(1, "amc-rollout")


_writers: WeakSet[Writer] = WeakSet()


def _start_writers_anew() -> None:
    for writer in [*_writers]:
        writer._start_anew()


in_forked_process(_start_writers_anew)


@atexit.register
def _flush_writers() -> None:
    for writer in [*_writers]:
        with suppress(TimeoutError):
            writer.flush(5.0)


class Measured:
    """The measurements of one call.

    Args:
        prices: dollars by model; they precede those of the library.
    """

    def __init__(self, prices: Mapping[str, Rates] | None = None) -> None:
        self._prices = prices
        self._meter = Meter()
        self._policy = PolicyMeter(self._meter, around=policy_meter())
        self.started = time.time()
        """Unix time."""
        self._since = time.perf_counter()
        self.seconds = 0.0
        """Duration until the end of the stream."""
        self.run: Run | None = None
        """The last run of `amc()` inside the call."""
        self.failed: str | None = None
        """Type and text of the error that ended the call."""
        self.last: Any = None
        """The last event that was read."""

    def stream(self, events: Iterator[Any]) -> Generator[Any, None, None]:
        """Yield the events of a stream, and measure until its end."""
        try:
            with self._timing():
                while True:
                    with self._counting():
                        event = next(events, self)
                    if event is self:
                        return
                    self.last = event
                    yield event
        finally:
            if isinstance(events, Generator):
                events.close()

    async def astream(self, events: AsyncIterator[Any]) -> AsyncGenerator[Any, None]:
        """Yield the events of a stream, and measure until its end."""
        try:
            with self._timing():
                while True:
                    with self._counting():
                        event = await anext(events, self)
                    if event is self:
                        return
                    self.last = event
                    yield event
        finally:
            if isinstance(events, AsyncGenerator):
                with suppress(RuntimeError):  # The event loop may be closing an abandoned stream already.
                    await events.aclose()

    def as_record(self) -> dict[str, Any]:
        """Return what a record keeps of the call."""
        run = self.run
        return {
            "seconds": self.seconds,
            "failed": self.failed,
            "value": None if run is None or run.best_index < 0 else float(run.population.values[run.best_index]),
            "n_particles": None if run is None else _size(run),
            **spending(self._meter.by_model() if run is None else run.usage_by_model, self._prices),
        }

    @contextmanager
    def _timing(self) -> Iterator[None]:
        try:
            yield
        except GraphBubbleUp:  # A hand-off or an interrupt of a surrounding graph is no failure.
            raise
        except Exception as error:
            self.failed = f"{type(error).__name__}: {error}"[:300]
            raise
        finally:
            self.seconds = time.perf_counter() - self._since

    @contextmanager
    def _counting(self) -> Iterator[None]:
        # Around each event, and not around the stream: the context between two events is the caller's.
        with ExitStack() as stack:
            stack.enter_context(counting_requests(self._policy))
            stack.enter_context(metering(self._meter))
            stack.enter_context(listening(self._keep))
            yield

    def _keep(self, run: Run) -> None:
        self.run = run


def _size(run: Run) -> int:
    """Return N; of an adaptive run, the number of particles that it had."""
    size = run.config["n_particles"]
    return size if isinstance(size, int) else len(run.population.trajectories)


def spending(
    usage: Mapping[str, Mapping[str, Usage]], prices: Mapping[str, Rates] | None
) -> dict[str, float | int | None]:
    """Return {"requests", "tokens", "dollars"} of a usage by role and model; dollars are None if they are not known."""
    used = [each for models in usage.values() for each in models.values()]
    dollars = cost(usage, prices)
    return {
        "requests": sum(each.calls for each in used),
        "tokens": sum(each.tokens for each in used),
        "dollars": None if dollars.is_lower_bound else dollars.total,
    }


def forget_measuring() -> None:
    """Leave the measurements that surround this context."""
    count_requests(None)
    change_context(meter=None)
    ignore_runs()


Agent = CompiledStateGraph[Any, Any, Any, Any]

_OF_CALLS = ("cache", "checkpointer", "config", "store")
"""Fields of a graph that do not depend on its nodes."""
_ACCEPTED = {*signature(CompiledStateGraph.__init__).parameters, *signature(Pregel.__init__).parameters}


def fields_of(agent: Agent) -> dict[str, Any]:
    """Return the fields with which a compiled graph is created again, without those that a subclass adds."""
    return {name: value for name, value in agent.__dict__.items() if name in _ACCEPTED}


def updated(agent: Agent, update: Mapping[str, Any] | None) -> Agent:
    """Copy an agent with the fields of an update that do not depend on its nodes."""
    return agent.copy({name: value for name, value in (update or {}).items() if name in _OF_CALLS})


def with_run_id(config: RunnableConfig | None, run_id: uuid.UUID | str) -> RunnableConfig:
    """Return the config of a call with the id by which its outcome joins."""
    return {**(config or {}), "run_id": uuid.UUID(str(run_id))}
