"""An SQLite database per particle, for agents that query and write tables."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amc_agents.envs.real.changes import Conflict, RowChange, row_diff
from amc_agents.envs.real.workspace import Workspace
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ForkError, WorldError

Row = tuple[Any, ...]


class SqliteFork:
    """A copy of an SQLite database for each particle (a `Forkable`).

    A tool gets a connection to its particle's database from `current_environment(SqliteFork).connect()`. The
    original is read when the run begins and written by `apply` alone. Copies are made with SQLite's backup API, so that
    other processes may use the original meanwhile.

    Args:
        path: the original database file.
        workspace: folder for the copies; None: the temporary folder.

    Raises:
        ConfigurationError: `path` is not a database file.
        StorageError: the workspace cannot be written.
    """

    def __init__(self, path: str | Path, *, workspace: str | Path | None = None) -> None:
        self.original = Path(path).resolve()
        if not self.original.is_file():
            raise ConfigurationError(f"SqliteFork expects the file of a database, got {str(path)!r}")
        self._workspace = Workspace(None if workspace is None else Path(workspace))
        self._base = _Shared(self._workspace.reserve())
        self._connections: list[sqlite3.Connection] = []
        self._path: Path | None = self._workspace.reserve()
        try:
            _back_up(self.original, self._base.path)
            _back_up(self._base.path, self._path)
        except sqlite3.DatabaseError as error:
            self._workspace.release(self._path)
            self._workspace.release(self._base.path)
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
            ForkError: a connection of this world is inside a transaction.
        """
        if any(_in_transaction(connection) for connection in self._connections):
            raise ForkError(
                "SqliteFork cannot copy a database inside an open write transaction: commit at the end of each tool "
                "call, or use `with connection:`"
            )
        twin = object.__new__(SqliteFork)
        twin.original, twin._workspace, twin._base = self.original, self._workspace, self._base
        twin._connections, twin._path = [], None
        target = self._workspace.reserve()
        try:
            await asyncio.to_thread(_back_up, self.path, target)
        except BaseException:
            self._workspace.release(target)
            raise
        twin._path = target
        self._base.users += 1
        return twin

    async def close(self) -> None:
        """Close all connections and remove the particle's database; safe to call twice."""
        path, self._path = self._path, None
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        if path is not None:
            _release(self._workspace, path)
            self._base.users -= 1
            if not self._base.users:
                _release(self._workspace, self._base.path)

    def changes(self) -> list[RowChange]:
        """The particle's changed rows, by table and key.

        Raises:
            WorldError: the particle has changed the schema.
        """
        with _attached(self._base.path, self.path) as connection:
            tables = _tables(connection, "main")
            if tables != _tables(connection, "other"):
                raise WorldError(
                    "the particle has changed the schema of its database: compare or apply it by hand, from `path`"
                )
            return [change for table in tables.values() for change in _changed_rows(connection, table)]

    def diff(self) -> str:
        """The particle's changes, one line per row: `+` added, `-` deleted, `~` modified."""
        return row_diff(self.changes())

    def apply(self) -> list[RowChange]:
        """Write the particle's changes to the original in one transaction, and return them.

        Raises:
            Conflict: a row that the particle changed has also changed in the original since the run began.
            WorldError: a schema has changed, or the original rejects a change (a constraint, or a lock).
        """
        changes = self.changes()
        with closing(sqlite3.connect(self.original, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
                _write(connection, changes, str(self.original))
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                raise WorldError(f"{self.original} rejected the changes: {error}. Nothing was written") from error
        return changes


@dataclass
class _Shared:
    """The original at the beginning of the run, shared by all forks."""

    path: Path
    users: int = 1


@dataclass(frozen=True)
class _Table:
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    """Columns of the primary key, or `rowid`."""

    @property
    def where(self) -> str:
        """A condition on the key."""
        return " AND ".join(f"{_quoted(name)} IS ?" for name in self.key)


def _back_up(source: Path, target: Path) -> None:
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as read,
        closing(sqlite3.connect(target)) as copy,
    ):
        read.backup(copy)


def _in_transaction(connection: sqlite3.Connection) -> bool:
    try:
        return connection.in_transaction
    except sqlite3.ProgrammingError:
        return False  # Closed by the tool.


def _release(workspace: Workspace, path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    workspace.release(path)


@contextmanager
def _attached(main: Path, other: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(main)) as connection:
        connection.execute("ATTACH DATABASE ? AS other", (str(other),))
        yield connection


def _tables(connection: sqlite3.Connection, schema: str) -> Mapping[str, _Table]:
    names = connection.execute(
        f"SELECT name FROM {schema}.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    )
    return {name: _table(connection, schema, name) for (name,) in names.fetchall()}


def _table(connection: sqlite3.Connection, schema: str, name: str) -> _Table:
    rows = connection.execute(f"PRAGMA {schema}.table_info({_quoted(name)})").fetchall()
    key = [column for _, column, *_, place in sorted(rows, key=lambda row: row[-1]) if place]
    return _Table(name, tuple(row[1] for row in rows), tuple(key) or ("rowid",))


def _changed_rows(connection: sqlite3.Connection, table: _Table) -> Iterator[RowChange]:
    before, after = (
        _different(connection, table, first, second) for first, second in (("main", "other"), ("other", "main"))
    )
    for key in sorted(before.keys() | after.keys(), key=repr):
        yield RowChange(table.name, key, before.get(key), after.get(key))


def _different(connection: sqlite3.Connection, table: _Table, first: str, second: str) -> dict[Row, Row]:
    """Rows of the first schema that are not equal in the second, by key."""
    columns = ", ".join(map(_quoted, (*table.key, *table.columns)))
    name = _quoted(table.name)
    rows = connection.execute(f"SELECT {columns} FROM {first}.{name} EXCEPT SELECT {columns} FROM {second}.{name}")
    n_key = len(table.key)
    return {tuple(row[:n_key]): tuple(row[n_key:]) for row in rows}


def _write(connection: sqlite3.Connection, changes: list[RowChange], original: str) -> None:
    tables = _tables(connection, "main")
    unknown = [change.table for change in changes if change.table not in tables]
    if unknown:
        raise Conflict(original, [f"the schema of {name}" for name in dict.fromkeys(unknown)])
    conflicts = [
        f"{change.table} {change.key}"
        for change in changes
        if _read(connection, tables[change.table], change.key) != change.before
    ]
    if conflicts:
        raise Conflict(original, conflicts)
    for change in sorted(changes, key=lambda change: change.after is not None):
        _write_row(connection, tables[change.table], change)


def _read(connection: sqlite3.Connection, table: _Table, key: Row) -> Row | None:
    columns = ", ".join(map(_quoted, table.columns))
    row = connection.execute(f"SELECT {columns} FROM {_quoted(table.name)} WHERE {table.where}", key).fetchone()
    return None if row is None else tuple(row)


def _write_row(connection: sqlite3.Connection, table: _Table, change: RowChange) -> None:
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
