"""Compare the rows of two SQLite databases, and write changed rows."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amc_agents.envs.real.changes import RowChange
from amc_agents.errors import ForkError, WorldError

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
