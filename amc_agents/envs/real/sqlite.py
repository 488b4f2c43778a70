"""An SQLite database per particle, for agents that query and write tables."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amc_agents.envs.real.changes import Conflict, RowChange, row_diff
from amc_agents.envs.real.copying import link_or_copy
from amc_agents.envs.real.snapshots import Snapshots
from amc_agents.envs.real.sqlite_rows import (
    applied_rows,
    attached,
    back_up,
    changed_rows,
    conflicting_rows,
    database_errors,
    opened,
    schema_of,
    tables_of,
    without_triggers,
    write_rows,
)
from amc_agents.envs.real.workspace import Workspace
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ForkError, WorldError
from amc_agents.logs import log, room_logger
from amc_agents.quoting import quoted

_log = room_logger(__name__)


class SqliteFork:
    """A copy of an SQLite database for each particle (`Forkable` and `Restorable`).

    A tool gets a connection to its particle's database from `current_environment(SqliteFork).connect()`. The
    original is read when the run begins and written by `apply` alone. Copies are made with SQLite's backup API, so that
    other processes may use the original meanwhile. Snapshots are in `workspace` until they are released;
    `remove_snapshots` removes abandoned snapshots by age.

    Args:
        path: the original database file.
        workspace: folder for the copies; None: the temporary folder.

    Raises:
        ConfigurationError: `path` is not a database file.
        ForkError: another process has locked the database.
        StorageError: the workspace cannot be written.
    """

    def __init__(self, path: str | Path, *, workspace: str | Path | None = None) -> None:
        self.original = Path(path).resolve()
        if not self.original.is_file():
            raise ConfigurationError(f"SqliteFork expects the file of a database, got {quoted(str(path), 200)}")
        self._workspace = Workspace(None if workspace is None else Path(workspace))
        self._base = _Shared(self._workspace.reserve())
        self._connections: list[sqlite3.Connection] = []
        self._path: Path | None = self._workspace.reserve()
        try:
            back_up(self.original, self._base.path)
            back_up(self._base.path, self._path)
        except BaseException as error:
            self._leave(self._path, self._base)
            if not isinstance(error, sqlite3.Error):
                raise
            raise ConfigurationError(f"SqliteFork cannot read {self.original} as a database: {error}") from error

    @property
    def path(self) -> Path:
        """The file of the particle's own database.

        Raises:
            EnvironmentStateError: the world is closed.
        """
        if self._path is None:
            raise EnvironmentStateError("this SqliteFork is closed: its database no longer exists")
        return self._path

    def connect(self, **options: Any) -> sqlite3.Connection:
        """Open a connection to the particle's database, which `close` closes.

        Args:
            options: of `sqlite3.connect`. Connections may be used in any thread by default.
        """
        connection: sqlite3.Connection = sqlite3.connect(self.path, **{"check_same_thread": False, **options})
        self._connections.append(connection)
        return connection

    async def fork(self, seed: int) -> SqliteFork:
        """Copy the particle's database. The seed is unused, since a database has no randomness.

        Raises:
            ForkError: a connection is inside a transaction.
            WorldError: a tool has damaged or deleted the database.
        """
        self._refuse_in_transaction()
        twin = object.__new__(SqliteFork)
        twin.original, twin._workspace, twin._base = self.original, self._workspace, self._base
        twin._connections, twin._path = [], None
        target = self._workspace.reserve()
        try:
            with database_errors(self.path, "cannot be copied"):
                await asyncio.to_thread(back_up, self.path, target)
        except BaseException:
            self._workspace.release(target)
            raise
        twin._path = target
        self._base.users += 1
        return twin

    async def close(self) -> None:
        """Close all connections and remove the particle's database; safe to call twice."""
        path, self._path = self._path, None
        self._disconnect()
        if path is not None:
            self._leave(path, self._base)

    async def snapshot(self) -> dict[str, Any]:
        """Save the particle's database, and the original at the beginning of the run, in the workspace folder.

        Raises:
            ForkError: a connection is inside a transaction.
            StorageError: the workspace cannot be written.
            WorldError: a tool has damaged or deleted the database.
        """
        self._refuse_in_transaction()
        return await asyncio.to_thread(self._snapshots.save, partial(self._save, self.path))

    async def restore(self, snapshot: Any) -> None:
        """Replace the particle's database by a saved database, and close the connections to it.

        Saved changes that the original has received meanwhile, by `apply`, no longer count as changes.

        Raises:
            WorldError: the snapshot is missing or damaged.
        """
        await asyncio.to_thread(self._restore, snapshot)

    async def release(self, snapshot: Any) -> None:
        """Delete a snapshot; safe to call twice."""
        await asyncio.to_thread(self._snapshots.release, snapshot)

    def changes(self) -> list[RowChange]:
        """The particle's changed rows, by table and key.

        Raises:
            WorldError: the particle has changed the schema, or a tool has damaged or deleted the database.
        """
        with database_errors(self.path, "cannot be compared"), attached(self._base.path, self.path) as connection:
            if schema_of(connection, "main") != schema_of(connection, "other"):
                raise WorldError(
                    "the particle has changed the schema of its database: compare or apply it by hand, from `path`"
                )
            tables = tables_of(connection, "main")
            return [change for table in tables.values() for change in changed_rows(connection, table)]

    def diff(self) -> str:
        """The particle's changes, one line per row: `+` added, `-` deleted, `~` modified."""
        return row_diff(self.changes())

    def apply(self) -> list[RowChange]:
        """Write the particle's changes to the original in one transaction, and return them.

        Triggers that have fired in the particle's database do not fire again; those that the original got since the run
        began do. A killed process leaves all changes or none.

        Raises:
            Conflict: a row that the particle changed has also changed in the original since the run began.
            WorldError: a schema has changed, or the original rejects a change (a constraint, or a lock).
        """
        changes = self.changes()
        with database_errors(self.path, "cannot be read"), opened(self.path) as copy:
            schema = schema_of(copy, "main")
        problem = "rejected the changes, of which nothing was written"
        with database_errors(self.original, problem), opened(self.original) as connection:
            connection.execute("BEGIN IMMEDIATE")
            conflicts = conflicting_rows(connection, changes)
            if conflicts:
                raise Conflict(str(self.original), conflicts)
            with without_triggers(connection, schema):
                write_rows(connection, changes)
            connection.execute("COMMIT")
        return changes

    def conflicts(self) -> list[str]:
        """Rows that the particle changed and that have also changed in the original, to something else."""
        changes = self.changes()
        with database_errors(self.original, "cannot be compared"), opened(self.original) as connection:
            return conflicting_rows(connection, changes)

    @property
    def _snapshots(self) -> Snapshots:
        return Snapshots(self._workspace.parent)

    def _refuse_in_transaction(self) -> None:
        if any(_in_transaction(connection) for connection in self._connections):
            raise ForkError(
                "SqliteFork cannot copy a database inside an open write transaction: commit at the end of each tool "
                "call, or use `with connection:`"
            )

    def _disconnect(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    def _leave(self, path: Path, base: _Shared) -> None:
        _release(self._workspace, path)
        base.users -= 1
        if not base.users:
            _release(self._workspace, base.path)

    def _save(self, path: Path, saved: Path) -> None:
        link_or_copy(str(self._base.path), str(saved / "base"))
        with database_errors(path, "cannot be saved"):
            back_up(path, saved / "state")

    def _restore(self, snapshot: Any) -> None:
        saved = self._snapshots.find(snapshot)
        old, base, path = self.path, _Shared(self._workspace.reserve()), self._workspace.reserve()
        try:
            back_up(saved / "base", base.path)
            back_up(saved / "state", path)
        except sqlite3.Error as error:
            self._leave(path, base)
            raise WorldError(f"the snapshot {saved} is damaged: {error}") from error
        previous, self._base, self._path = self._base, base, path
        self._disconnect()
        self._leave(old, previous)
        self._forget_applied()

    def _forget_applied(self) -> None:
        """Write changes that the original has received to the state to compare with, if nothing prevents it."""
        try:
            changes = self.changes()
            with opened(self.original) as original:
                applied = applied_rows(original, changes)
            with opened(self._base.path) as base:
                base.execute("BEGIN")
                with without_triggers(base, schema_of(base, "main")):
                    write_rows(base, applied)
                base.execute("COMMIT")
        except (WorldError, sqlite3.Error) as error:
            log(
                _log,
                logging.DEBUG,
                "world.not_rebased",
                "%(original)s: changes that the original has already still count as changes: %(text)s",
                original=self.original,
                text=error,
            )


@dataclass
class _Shared:
    """The original at the beginning of the run, shared by all forks."""

    path: Path
    users: int = 1


def _in_transaction(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:
        return False  # Closed by the tool.


def _release(workspace: Workspace, path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    workspace.release(path)
