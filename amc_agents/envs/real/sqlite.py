"""An SQLite database per particle, for agents that query and write tables, and the rows that it changes."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from amc_agents.envs.real.changes import Conflict, RowChange, row_diff
from amc_agents.envs.real.copying import link_or_copy
from amc_agents.envs.real.workspace import Snapshots, Workspace
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ForkError, WorldError
from amc_agents.logs import log, room_logger
from amc_agents.quoting import quoted

Row = tuple[Any, ...]
LOCK_LIMIT_S = 10.0
"""Time limit in seconds of waiting for a connection that has locked a database."""


@dataclass(frozen=True)
class Table:
    """A table and its columns."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """Columns of the primary key, or `rowid`."""

    @property
    def where(self) -> str:
        """A condition on the key."""
        return " AND ".join(f"{_quoted(name)} IS ?" for name in self.key)


@contextmanager
def opened(path: Path, mode: str = "rw") -> Iterator[sqlite3.Connection]:
    """Open a database file, which must exist, without implicit transactions."""
    uri = f"{path.as_uri()}?mode={mode}"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=LOCK_LIMIT_S)) as connection:
        yield connection


@contextmanager
def attached(main: Path, other: Path) -> Iterator[sqlite3.Connection]:
    """Open two databases under the names `main` and `other`."""
    with opened(main) as connection:
        connection.execute("ATTACH DATABASE ? AS other", (f"{other.as_uri()}?mode=rw",))
        yield connection


def back_up(source: Path, target: Path) -> None:
    """Copy a database.

    Raises:
        ForkError: another process has locked the database for longer than the time limit.
        sqlite3.Error: it cannot be read.
    """
    deadline = time.monotonic() + LOCK_LIMIT_S

    def check(status: int, remaining: int, total: int) -> None:
        # `backup` itself would wait for ever.
        if status in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) and time.monotonic() > deadline:
            raise ForkError(
                f"cannot copy the database {source}, which another connection has locked for {LOCK_LIMIT_S:g} s: end "
                "its transaction"
            )

    with opened(source, "ro") as read, closing(sqlite3.connect(target)) as copy:
        read.execute("PRAGMA busy_timeout = 0")
        read.backup(copy, progress=check, sleep=0.05)


@contextmanager
def database_errors(path: Path, problem: str) -> Iterator[None]:
    """Raise errors of SQLite as a `WorldError` that names the database."""
    try:
        yield
    except sqlite3.Error as error:
        remedy = ""
        if isinstance(error, sqlite3.OperationalError) and "locked" in str(error):
            remedy = ". Another connection has locked it: end its transaction"
        elif not isinstance(error, sqlite3.IntegrityError):
            remedy = ". If a tool has damaged or deleted its file, restore it"
        raise WorldError(f"{path} {problem}: {error}{remedy}") from error


def schema_of(connection: sqlite3.Connection, schema: str) -> set[Row]:
    """Return the SQL of all tables, indexes, triggers and views, with their types and names."""
    rows = connection.execute(
        f"SELECT type, name, tbl_name, sql FROM {schema}.sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    )
    return {tuple(row) for row in rows}


def tables_of(connection: sqlite3.Connection, schema: str) -> Mapping[str, Table]:
    """Return the tables of a database by name."""
    names = connection.execute(
        f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    return {name: _table(connection, schema, name) for (name,) in names.fetchall()}


def _table(connection: sqlite3.Connection, schema: str, name: str) -> Table:
    rows = connection.execute(f"PRAGMA {schema}.table_info({_quoted(name)})").fetchall()
    key = [column for _, column, *_, place in sorted(rows, key=lambda row: row[-1]) if place]
    return Table(name, tuple(row[1] for row in rows), tuple(key) or ("rowid",))


def changed_rows(connection: sqlite3.Connection, table: Table) -> Iterator[RowChange]:
    """Return the rows of a table that differ between `main` (before) and `other` (after)."""
    before, after = (
        _different(connection, table, first, second) for first, second in (("main", "other"), ("other", "main"))
    )
    for key in sorted(before.keys() | after.keys(), key=repr):
        yield RowChange(table.name, key, before.get(key), after.get(key))


def _different(connection: sqlite3.Connection, table: Table, first: str, second: str) -> dict[Row, Row]:
    """Rows of the first schema that are not equal in the second, by key."""
    columns = ", ".join(map(_quoted, (*table.key, *table.columns)))
    name = _quoted(table.name)
    rows = connection.execute(f"SELECT {columns} FROM {first}.{name} EXCEPT SELECT {columns} FROM {second}.{name}")
    n_key = len(table.key)
    return {tuple(row[:n_key]): tuple(row[n_key:]) for row in rows}


def conflicting_rows(connection: sqlite3.Connection, changes: Sequence[RowChange]) -> list[str]:
    """Return the changed rows that are neither as before nor as after the change, and tables that do not exist."""
    tables = tables_of(connection, "main")
    unknown = [change.table for change in changes if change.table not in tables]
    if unknown:
        return [f"the schema of {name}" for name in dict.fromkeys(unknown)]
    return [
        f"{change.table} {change.key}"
        for change in changes
        if _read(connection, tables[change.table], change.key) not in (change.before, change.after)
    ]


def applied_rows(connection: sqlite3.Connection, changes: Sequence[RowChange]) -> list[RowChange]:
    """Return the changes that the database has already."""
    tables = tables_of(connection, "main")
    return [
        change
        for change in changes
        if change.table in tables and _read(connection, tables[change.table], change.key) == change.after
    ]


def write_rows(connection: sqlite3.Connection, changes: Sequence[RowChange]) -> None:
    """Write the changes that the database does not have yet."""
    tables = tables_of(connection, "main")
    pending = [change for change in changes if _read(connection, tables[change.table], change.key) != change.after]
    for change in sorted(pending, key=lambda change: change.after is not None):
        _write_row(connection, tables[change.table], change)


@contextmanager
def without_triggers(connection: sqlite3.Connection, known: Collection[Row]) -> Iterator[None]:
    """Drop triggers for the time of a block in a transaction: they have fired in the copy that the rows are from.

    Args:
        connection: to the database.
        known: the schema of the copy. Triggers that it lacks are kept, and fire.
    """
    found = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    dropped = [row for row in found if tuple(row) in known]
    for _, name, _, _ in dropped:
        connection.execute(f"DROP TRIGGER {_quoted(name)}")
    yield
    for *_, sql in dropped:
        connection.execute(sql)


def _read(connection: sqlite3.Connection, table: Table, key: Row) -> Row | None:
    columns = ", ".join(map(_quoted, table.columns))
    row = connection.execute(f"SELECT {columns} FROM {_quoted(table.name)} WHERE {table.where}", key).fetchone()
    return None if row is None else tuple(row)


def _write_row(connection: sqlite3.Connection, table: Table, change: RowChange) -> None:
    name = _quoted(table.name)
    if change.after is None:
        connection.execute(f"DELETE FROM {name} WHERE {table.where}", change.key)
    elif change.before is None:
        columns = table.columns if table.key != ("rowid",) else ("rowid", *table.columns)
        values = change.after if table.key != ("rowid",) else (*change.key, *change.after)
        marks = ", ".join("?" * len(columns))
        connection.execute(f"INSERT INTO {name} ({', '.join(map(_quoted, columns))}) VALUES ({marks})", values)
    else:
        assigned = ", ".join(f"{_quoted(column)} = ?" for column in table.columns)
        connection.execute(f"UPDATE {name} SET {assigned} WHERE {table.where}", (*change.after, *change.key))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
