"""Changed rows between two PostgreSQL databases of the same schema, and writing them to a third."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any

import psycopg

from amc_agents.envs.real.changes import Conflict, RowChange
from amc_agents.errors import WorldError

_EXACT_TEXT = (
    "SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; SET IntervalStyle = 'postgres'; SET bytea_output = 'hex'; "
    "SET extra_float_digits = 1"
)
"""Settings with which a row's text is the same in all databases and can be read back without loss."""
_COLUMNS = """
SELECT format('%I.%I', n.nspname, c.relname), quote_ident(a.attname), a.atttypid, a.atttypmod, a.attgenerated <> '',
       coalesce(a.attnum = ANY (i.indkey), false)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE c.relkind = 'r' AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
ORDER BY n.nspname, c.relname, a.attnum
"""
_REFERENCES = """
SELECT format('%I.%I', n.nspname, c.relname), format('%I.%I', m.nspname, d.relname)
FROM pg_constraint f
JOIN pg_class c ON c.oid = f.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class d ON d.oid = f.confrelid JOIN pg_namespace m ON m.oid = d.relnamespace
WHERE f.contype = 'f' AND f.conrelid <> f.confrelid
"""
_SEQUENCES = """
SELECT format('%I.%I', schemaname, sequencename), coalesce(last_value, start_value - increment_by), increment_by
FROM pg_sequences
"""
_WRITTEN = """
SELECT format('%I.%I', schemaname, relname), n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_xact_user_tables
WHERE n_tup_ins + n_tup_upd + n_tup_del > 0
"""


@dataclass(frozen=True)
class Table:
    """A table, with names quoted for SQL."""

    name: str
    columns: tuple[tuple[str, int, int, bool], ...]
    """Name of each column, OID and modifier of its type, and whether it is generated."""
    key: tuple[str, ...]
    """Columns of the primary key."""

    @property
    def written(self) -> list[str]:
        """The columns that can be written."""
        return [name for name, _, _, generated in self.columns if not generated]

    def fields(self, names: Iterable[str]) -> str:
        """SQL for columns of the row whose text is `amc_r`."""
        return ", ".join(f"(amc_r::{self.name}).{name}" for name in names)

    @property
    def key_matches(self) -> str:
        """SQL that compares the keys of the table's row `amc_t` and the text `amc_r`."""
        return f"({', '.join(f'amc_t.{name}' for name in self.key)}) = ({self.fields(self.key)})"


@dataclass(frozen=True)
class ChangedRow:
    """A changed row, with PostgreSQL's text for it before and after the change."""

    change: RowChange
    table: Table
    before: str | None
    after: str | None


def open_for_rows(dsn: str) -> AbstractContextManager[Any]:
    """Open a connection with a serializable transaction, which the context manager commits."""
    connection = psycopg.connect(dsn, autocommit=True)
    connection.execute(_EXACT_TEXT)
    connection.autocommit = False
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    opened: AbstractContextManager[Any] = connection
    return opened


def changed_rows(before: Any, after: Any) -> list[ChangedRow]:
    """Compare all tables of two databases.

    Raises:
        WorldError: the schemas differ, or the contents of a table without a primary key.
    """
    tables = _tables(after)
    if tables != _tables(before):
        raise WorldError(
            "the particle has changed the schema of its database: compare or apply it by hand, from `name`"
        )
    return [row for table in tables.values() for row in _changed_rows(before, after, table)]


def write_rows(copy: Any, original: Any, rows: Sequence[ChangedRow], name: str) -> None:
    """Write changed rows of a copy to the original.

    Raises:
        Conflict: the original does not have the rows as they were before the change.
        WorldError: a trigger or a cascade changed further rows.
    """
    conflicts = conflicting_rows(original, rows)
    if conflicts:
        raise Conflict(name, conflicts)
    pending = [row for row, text in zip(rows, _present(original, rows), strict=True) if text != row.after]
    changed = {row.table.name: row.table for row in pending}
    by_table = {table: [row for row in pending if row.table.name == table] for table in changed}
    parents_first = _parents_first(original, changed)
    for table in reversed(parents_first):
        _delete(original, changed[table], by_table[table])
    for table in parents_first:
        _update_and_insert(original, changed[table], by_table[table])
    _check_written(original, by_table, name)
    _advance_sequences(copy, original)


def _tables(connection: Any) -> dict[str, Table]:
    columns: dict[str, list[tuple[Any, ...]]] = {}
    for table, *column in connection.execute(_COLUMNS).fetchall():
        columns.setdefault(table, []).append(tuple(column))
    return {
        table: Table(table, tuple(row[:4] for row in rows), tuple(row[0] for row in rows if row[4]))
        for table, rows in columns.items()
    }


def _changed_rows(before: Any, after: Any, table: Table) -> list[ChangedRow]:
    texts = [_texts(connection, table) for connection in (before, after)]
    if texts[0] == texts[1]:
        return []
    if not table.key:
        raise WorldError(
            f"the particle has changed {table.name}, which has no primary key: give the table a primary key, or "
            "compare it by hand"
        )
    old, new = _by_key(after, table, texts[0] - texts[1]), _by_key(after, table, texts[1] - texts[0])
    return [_changed_row(table, old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys())]


def _texts(connection: Any, table: Table) -> Counter[str]:
    return Counter(text for (text,) in connection.execute(f"SELECT (amc_t.*)::text FROM ONLY {table.name} amc_t"))


_Row = tuple[str, tuple[Any, ...], tuple[Any, ...]]
"""Text of a row, values of its key, and values of all its columns."""


def _by_key(connection: Any, table: Table, texts: Iterable[str]) -> dict[str, _Row]:
    """Parse rows, and return them by the text of their key."""
    names = [name for name, *_ in table.columns]
    key = table.fields(table.key)
    query = f"SELECT ROW({key})::text, amc_r, {key}, {table.fields(names)} FROM unnest(%s::text[]) amc_r"
    end = 2 + len(table.key)
    rows = connection.execute(query, (list(texts),)).fetchall()
    return {row[0]: (row[1], tuple(row[2:end]), tuple(row[end:])) for row in rows}


def _changed_row(table: Table, old: _Row | None, new: _Row | None) -> ChangedRow:
    key = next(row[1] for row in (old, new) if row)
    change = RowChange(table.name, key, old[2] if old else None, new[2] if new else None)
    return ChangedRow(change, table, old[0] if old else None, new[0] if new else None)


def conflicting_rows(original: Any, rows: Sequence[ChangedRow]) -> list[str]:
    """Return the changed rows that are neither as before nor as after the change, and tables of another schema."""
    tables = _tables(original)
    changed = {row.table.name: row.table for row in rows}
    schemas = [f"the schema of {table}" for table in changed if tables.get(table) != changed[table]]
    if schemas:
        return schemas
    present = _present(original, rows)
    return [
        f"{row.table.name} {row.change.key}"
        for row, text in zip(rows, present, strict=True)
        if text not in (row.before, row.after)
    ]


def applied_rows(original: Any, rows: Sequence[ChangedRow]) -> list[ChangedRow]:
    """Return the changes that the original has already. Its tables must have the schema of the rows."""
    return [row for row, text in zip(rows, _present(original, rows), strict=True) if text == row.after]


def _present(original: Any, rows: Sequence[ChangedRow]) -> list[str | None]:
    """Lock the rows in the original, and return their present texts; None: the row does not exist."""
    texts = [row.before or row.after for row in rows]
    present: dict[tuple[str, str | None], str] = {}
    for name, table in {row.table.name: row.table for row in rows}.items():
        query = (
            f"SELECT amc_r, (amc_t.*)::text FROM unnest(%s::text[]) amc_r JOIN ONLY {name} amc_t "
            f"ON {table.key_matches} FOR UPDATE OF amc_t"
        )
        of_table = [text for row, text in zip(rows, texts, strict=True) if row.table.name == name]
        present |= {(name, text): now for text, now in original.execute(query, (of_table,)).fetchall()}
    return [present.get((row.table.name, text)) for row, text in zip(rows, texts, strict=True)]


def _parents_first(connection: Any, names: Iterable[str]) -> list[str]:
    """Order tables so that a table comes after those that its foreign keys refer to."""
    parents: dict[str, set[str]] = {name: set() for name in names}
    for child, parent in connection.execute(_REFERENCES).fetchall():
        if child in parents and parent in parents:
            parents[child].add(parent)
    try:
        return list(TopologicalSorter(parents).static_order())
    except CycleError:
        return list(parents)  # Works if the constraints are deferrable; the server rejects it otherwise.


def _delete(connection: Any, table: Table, rows: Sequence[ChangedRow]) -> None:
    texts = [row.before for row in rows if row.after is None]
    if texts:
        connection.execute(
            f"DELETE FROM ONLY {table.name} amc_t USING unnest(%s::text[]) amc_r WHERE {table.key_matches}", (texts,)
        )


def _update_and_insert(connection: Any, table: Table, rows: Sequence[ChangedRow]) -> None:
    # One statement for all rows of a table: foreign keys within the table are checked at its end.
    updated = [row.after for row in rows if row.before is not None and row.after is not None]
    added = [row.after for row in rows if row.before is None]
    if updated:
        assignments = ", ".join(f"{name} = {table.fields([name])}" for name in table.written if name not in table.key)
        connection.execute(
            f"UPDATE ONLY {table.name} amc_t SET {assignments} FROM unnest(%s::text[]) amc_r WHERE {table.key_matches}",
            (updated,),
        )
    if added:
        connection.execute(
            f"INSERT INTO {table.name} ({', '.join(table.written)}) OVERRIDING SYSTEM VALUE "
            f"SELECT {table.fields(table.written)} FROM unnest(%s::text[]) amc_r",
            (added,),
        )


def _check_written(connection: Any, rows: Mapping[str, Sequence[ChangedRow]], name: str) -> None:
    written = {table: tuple(counts) for table, *counts in connection.execute(_WRITTEN).fetchall()}
    expected = {
        table: (
            sum(row.before is None for row in changed),
            sum(row.before is not None and row.after is not None for row in changed),
            sum(row.after is None for row in changed),
        )
        for table, changed in rows.items()
    }
    wrong = sorted(table for table in written.keys() | expected if written.get(table) != expected.get(table))
    if wrong:
        raise WorldError(
            f"cannot apply the changes: triggers or cascades of {name} would change further rows, in "
            f"{', '.join(wrong):.100}. Nothing was written. Apply them by hand with diff()"
        )


def _advance_sequences(copy: Any, original: Any) -> None:
    # nextval, unlike setval, cannot move a sequence back that others advance at the same time.
    present = {name: value for name, value, _ in original.execute(_SEQUENCES).fetchall()}
    for name, value, increment in copy.execute(_SEQUENCES).fetchall():
        n_behind = (value - present.get(name, value)) // increment
        if n_behind > 0:
            original.execute("SELECT max(nextval(%s::regclass)) FROM generate_series(1, %s)", (name, n_behind))
