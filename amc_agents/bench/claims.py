"""Leases on work items in SQLite, so that several processes can work on one results folder.

`claims.sqlite` says who works on which item. It holds no results: those are in the folder's JSON lines, and the file
may be deleted whenever no process is using the folder. A claim is a lease. Its owner extends it by a heartbeat, so that
the items of a process that was killed become free when their leases expire.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from enum import Enum
from pathlib import Path
from types import TracebackType

from amc_agents.bench.results_folder import CLAIMS
from amc_agents.bench.work import ItemKey
from amc_agents.errors import StorageError
from amc_agents.logs import log, room_logger

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
