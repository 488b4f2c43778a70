"""Where a job is executed: in processes of this command, in a folder that several commands share, or by an integration.

processes                            worker processes of this command alone (--workers)
shared                               as processes, and every further command that names the folder helps
ray:HOST:PORT?num_cpus=2             an executor of an installed package (entry points of the group
                                     "amc_agents.executors"); this one is of integrations/ray

Commands that share a folder agree by leases in `claims.sqlite`, which says who works on which item. It holds no
results: those are in the folder's JSON lines, and the file may be deleted whenever no process is using the folder. The
owner of a lease extends it by a heartbeat, so that the items of a process that was killed become free when their leases
expire.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from enum import Enum
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

from amc_agents.bench.engine import CountCallback, FolderQueue, Job, Work, in_processes, results_of, run_job, work_off
from amc_agents.bench.results_folder import (
    CLAIMS,
    ItemKey,
    ResultLine,
    ResultsFolder,
    ResultT,
    WorkItem,
    entering,
    read_results,
)
from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import ConfigurationError, StorageError
from amc_agents.logs import log, room_logger
from amc_agents.quoting import quoted
from amc_agents.training.collecting import Rollouts
from amc_agents.training.dataset import LoggedTrajectory
from amc_agents.training.scoring import Evaluated

LEASE_S = 60.0
"""Seconds after which the items of a process without a heartbeat are free again."""
_BEATS = 4
"""Heartbeats per lease."""
_PATIENCE_S = 30.0
"""Seconds to wait while another process writes."""
_log = room_logger(__name__)


class Claim(Enum):
    """The answer to a claim of an item."""

    FREE = "free"
    """The item is this process's now. Only a result that was stored before this process started can exist."""
    RECLAIMED = "reclaimed"
    """The item is this process's now. Its earlier owner died, and may have stored a result."""
    HELD = "held"
    """Another process is working on the item."""
    ENDED = "ended"
    """The item got its result, or failed, after this process had started."""


class Claims:
    """The leases of one process on the items of a results folder. A context manager, used in one thread.

    Args:
        folder: the results folder.
        owner: unique name of this process.
        lease: seconds until a lease expires without a heartbeat.
        clock: returns the time in seconds, which all processes must agree on.

    Raises:
        StorageError: the file cannot be read or written.
    """

    def __init__(
        self, folder: str | Path, owner: str, *, lease: float = LEASE_S, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._owner, self._lease, self._clock = Path(folder) / CLAIMS, owner, lease, clock
        self._started = clock()
        self._ending = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="claims-heartbeat", daemon=True)

    def __enter__(self) -> Claims:
        with _errors(self._path):
            self._database = _connected(self._path)
            self._database.execute(_TABLE)
        self._heart.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ending.set()
        self._heart.join()
        with _errors(self._path), closing(self._database):
            self._database.execute("DELETE FROM claims WHERE owner = ? AND ended IS NULL", (self._owner,))

    def take(self, item: ItemKey) -> Claim:
        """Claim an item. An item that failed can be claimed again by processes that start after the failure."""
        with _transaction(self._path, self._database) as database:
            row = database.execute(f"SELECT expires, ended FROM claims {_WHERE}", item).fetchone()
            answer = self._answer(row)
            if answer in (Claim.FREE, Claim.RECLAIMED):
                values = (*item, self._owner, self._clock() + self._lease)
                database.execute("INSERT OR REPLACE INTO claims VALUES (?, ?, ?, ?, ?, NULL)", values)
            return answer

    def _answer(self, row: tuple[float, float | None] | None) -> Claim:
        if row is None:
            return Claim.FREE
        expires, ended = row
        if ended is not None:
            return Claim.FREE if ended < self._started else Claim.ENDED
        return Claim.RECLAIMED if expires < self._clock() else Claim.HELD

    def holds(self, item: ItemKey) -> bool:
        """Return whether this process still holds an item: if it was suspended, another may have reclaimed it."""
        with _errors(self._path):
            row = self._database.execute(f"SELECT owner, ended FROM claims {_WHERE}", item).fetchone()
        return row is not None and row[0] == self._owner and row[1] is None

    def end(self, item: ItemKey) -> None:
        """Mark an item that this process holds as ended: its result or its failure is stored."""
        with _errors(self._path):
            self._database.execute(
                f"UPDATE claims SET ended = ? {_WHERE} AND owner = ?", (self._clock(), *item, self._owner)
            )

    def _beat(self) -> None:
        while not self._ending.wait(self._lease / _BEATS):
            try:
                self.extend()
            except StorageError as error:  # The next heartbeat tries again, before the lease expires.
                log(_log, logging.WARNING, "claim.heartbeat_failed", "a heartbeat failed: %(text)s", text=error)

    def extend(self) -> None:
        """Extend the leases of this process. Safe in any thread."""
        with _errors(self._path), closing(_connected(self._path)) as database:
            database.execute(
                "UPDATE claims SET expires = ? WHERE owner = ? AND ended IS NULL",
                (self._clock() + self._lease, self._owner),
            )


def _connected(path: Path) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_PATIENCE_S, isolation_level=None)
    # A killed process loses nothing that it has written, and a power cut loses at most this file, which has no results.
    database.execute("PRAGMA synchronous = OFF")
    return database


@contextmanager
def _transaction(path: Path, database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Read and write without another process in between."""
    with _errors(path):
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        remedy = "Stop all processes that use the folder, delete the file (it holds no results) and start them again"
        raise StorageError(str(path), f"{error}. {remedy}") from error


_WHERE = "WHERE method = ? AND task = ? AND seed = ?"
_TABLE = """
CREATE TABLE IF NOT EXISTS claims (
    method TEXT, task TEXT, seed INTEGER,
    owner TEXT NOT NULL, expires REAL NOT NULL, ended REAL,
    PRIMARY KEY (method, task, seed)
)
"""


_POLL_S = 0.5
"""Seconds between looks at items that other processes hold."""


class SharedQueue(FolderQueue):
    """The work items that have no result yet, for one of the processes that share a folder.

    Args:
        items: what to execute, in this order.
        stored: keys of the results that existed when this process had opened `claims`.
        folder: receives the results; open.
        claims: the leases of this process; open.
        reread: returns the keys of all results of the folder.
        progress: called at the start and after each change with the number of items that have ended.
    """

    def __init__(
        self,
        items: Sequence[WorkItem],
        stored: Collection[ItemKey],
        folder: ResultsFolder,
        claims: Claims,
        reread: Callable[[], Collection[ItemKey]],
        progress: CountCallback | None = None,
    ) -> None:
        super().__init__(items, stored, folder, progress)
        self._held_by_others: list[WorkItem] = []
        self._claims, self._reread = claims, reread

    def claim(self) -> WorkItem | None:
        """Claim the next item; None when every item has ended or is held by another process."""
        while (item := super().claim()) is not None:
            answer = self._claims.take(item.key)
            if answer is Claim.HELD:
                self._held_by_others.append(item)
            elif answer is Claim.ENDED:
                self._count(1)
            elif answer is Claim.RECLAIMED and item.key in self._reread():
                self.give_up(item)
            else:
                return item
        return None

    def give_up(self, item: WorkItem) -> None:
        """End a claimed item that needs no result of this process."""
        self._claims.end(item.key)
        self._count(1)

    def look_again(self) -> bool:
        """Queue the items that other processes held, once more. False if there are none: every item has ended."""
        self._waiting.extend(self._held_by_others)
        self._held_by_others.clear()
        return bool(self._waiting)

    def _store(self, item: WorkItem, result: ResultLine) -> None:
        # If this process was suspended for longer than its lease, another has executed the item.
        if self._claims.holds(item.key):
            self._folder.add(result)
        self._claims.end(item.key)


def run_shared(
    job: Job[ResultT],
    out: str | Path,
    *,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
    lease: float = LEASE_S,
) -> list[ResultT]:
    """Execute a job in a folder that other calls use at the same time; return when all items have ended.

    Every call continues with the results in the folder. A call may be killed at any time: others, or a later call,
    execute its unfinished items when their leases have expired.

    Args:
        job: what to execute.
        out: the results folder.
        n_workers: number of processes of this call.
        n_concurrent: items in progress at the same time in each process.
        progress: called with the number of ended items, from time to time.
        lease: seconds until the items of a process that died are free again.

    Returns:
        All results of the job, those of other calls included.

    Raises:
        ConfigurationError: `out` holds results with other settings, or a run that does not share it is using it.
        AmcError: a worker process failed; finished results are kept.
    """
    work = job.prepare()
    if n_workers > 1:
        arguments = [(job, str(out), n_concurrent, lease) for _ in range(n_workers)]
        in_processes(_share_in_process, arguments, progress, lambda: len(results_of(work, out)))
    else:
        sharing = _share(work, out, job.command, n_concurrent, lease, progress)
        run_in_background(sharing, n_workers=n_concurrent)
    return results_of(work, out)


async def _share(
    work: Work[ResultT],
    out: str | Path,
    command: str,
    n_concurrent: int,
    lease: float,
    progress: CountCallback | None = None,
) -> None:
    """Execute items in this process until every item of the work has ended, here or elsewhere."""
    worker = f"shared-{os.getpid()}-{secrets.token_hex(3)}"

    def stored() -> set[ItemKey]:
        return {result.key for result in read_results(out, work.parse)}

    with ExitStack() as stack:
        with entering(out, doing=command):
            folder = stack.enter_context(work.folder(out, resume=True, worker=worker))
        claims = stack.enter_context(Claims(out, worker, lease=lease))
        execute = stack.enter_context(work.executor(out, worker))
        queue = SharedQueue(work.items(), stored(), folder, claims, stored, progress)
        while True:
            await work_off(queue, execute, n_concurrent=n_concurrent)
            if not queue.look_again():
                return
            await asyncio.sleep(min(_POLL_S, lease / 4))


def _share_in_process(job: Job[ResultT], out: str, n_concurrent: int, lease: float) -> None:
    asyncio.run(_share(job.prepare(), out, job.command, n_concurrent, lease))


PROCESSES, SHARED = "processes", "shared"
GROUP = "amc_agents.executors"
"""Entry-point group in which other packages offer executors; each entry names a module that is a `RemoteExecutor`."""


class Cluster(Protocol):
    """Where an executor collects and scores."""

    def rollouts(self, make: Callable[[], Rollouts]) -> Rollouts:
        """Return rollouts that play each task there; `make`, which is picklable, makes them in a process there."""

    def values(self, critic: str, parts: Iterable[tuple[int, list[LoggedTrajectory]]]) -> Iterator[Evaluated]:
        """Score parts of a dataset there with a critic string, and yield them with values, in order."""


class RemoteExecutor(Protocol):
    """What a package offers as an executor. `executor` is the whole string of `--executor`."""

    def run(
        self, job: Job[Any], out: str | Path, executor: str, *,
        resume: bool, n_concurrent: int, progress: CountCallback | None,
    ) -> list[Any]:  # fmt: skip
        """Execute a job, as `execute_job`."""

    def cluster(self, executor: str, out: str | Path) -> AbstractContextManager[Cluster]:
        """Connect for a command that collects or scores, and writes to `out`."""


@contextmanager
def cluster_of(executor: str, out: str | Path) -> Iterator[Cluster | None]:
    """Connect to the cluster of an executor for a command whose output is not a results folder; None: no cluster.

    Raises:
        ConfigurationError: there is no such executor, or it is "shared", which needs a results folder.
    """
    if executor == SHARED:
        raise ConfigurationError("--executor shared is for amc bench and amc tune: use processes, or a cluster")
    if executor == PROCESSES:
        yield None
        return
    with _remote(executor).cluster(executor, out) as cluster:
        yield cluster


def _remote(executor: str) -> RemoteExecutor:
    name = executor.partition("?")[0].partition(":")[0]
    offered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in offered:
        known = ", ".join([PROCESSES, SHARED, *sorted(offered)])
        hint = "; ray is in integrations/ray, which is not installed" if name == "ray" else ""
        raise ConfigurationError(f"no executor {quoted(executor)}: expected one of {known}{hint}")
    return cast(RemoteExecutor, offered[name].load())


def execute_job(
    job: Job[ResultT],
    out: str | Path,
    *,
    executor: str = PROCESSES,
    resume: bool = False,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
) -> list[ResultT]:
    """Execute every item of a job that `out` has no result of. The results are the same with every executor.

    Args:
        job: what to execute.
        out: the results folder.
        executor: "processes", "shared" (which implies `resume`), or one of another package; see this module.
        resume: continue with the results in `out`.
        n_workers: number of processes of this machine.
        n_concurrent: items in progress at the same time in each process.
        progress: called with the number of stored results, from time to time.

    Raises:
        ConfigurationError: there is no such executor; else as `run_job` and `run_shared`.
    """
    if executor == PROCESSES:
        return run_job(job, out, resume=resume, n_workers=n_workers, n_concurrent=n_concurrent, progress=progress)
    if executor == SHARED:
        return run_shared(job, out, n_workers=n_workers, n_concurrent=n_concurrent, progress=progress)
    remote = _remote(executor)
    return remote.run(job, out, executor, resume=resume, n_concurrent=n_concurrent, progress=progress)
