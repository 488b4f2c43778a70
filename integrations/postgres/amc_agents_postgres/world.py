"""A PostgreSQL database per particle, for agents that query and write a staging database."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import ExitStack
from typing import Any

import psycopg

from amc_agents.envs.real.changes import RowChange, row_diff
from amc_agents.errors import EnvironmentStateError, ForkError, WorldError
from amc_agents.logs import log
from amc_agents_postgres.databases import (
    Databases,
    release_snapshot,
    restore_snapshot,
    save_snapshot,
    server_errors,
)
from amc_agents_postgres.rows import (
    ChangedRow,
    applied_rows,
    changed_rows,
    conflicting_rows,
    open_for_rows,
    write_rows,
)

_log = logging.getLogger(__name__)


class PostgresFork:
    """A copy of a PostgreSQL database for each particle (`Forkable` and `Restorable`), made by `CREATE DATABASE`.

    A tool gets a connection to its particle's database from `current_environment(PostgresFork).connect()`. A fork
    closes the connections of its world, so each tool call should connect anew. The original is read when the run begins
    and written by `apply` alone. It must have no other connections when the run begins, so it should be a staging
    database. `ALTER DATABASE ... SET` and grants on the database itself are not copied. Snapshots are databases of the
    server until they are released; `remove_snapshots` removes abandoned
    snapshots by age.

    Requires PostgreSQL 13 or later and a role with CREATEDB that owns the original.

    Args:
        dsn: a connection string or URL that names the original database. The server's database `postgres` must be
            accessible too.

    Raises:
        ConfigurationError: the original cannot be reached, or the role may not copy it.
        ForkError: the original has other connections.
    """

    def __init__(self, dsn: str) -> None:
        self._databases = Databases(dsn)
        self._base = _Shared(self._databases, self._databases.reserve())
        self._connections: list[Any] = []
        self._name: str | None = self._databases.reserve()
        try:
            self._databases.copy(self._databases.original, self._base.name)
            self._databases.copy(self._base.name, self._name)
        except BaseException:
            self._databases.abandon(self._name, self._base.name)
            raise

    @property
    def name(self) -> str:
        """The name of the particle's own database.

        Raises:
            EnvironmentStateError: the world is closed.
        """
        if self._name is None:
            raise EnvironmentStateError("this PostgresFork is closed: its database no longer exists")
        return self._name

    def connect(self, **options: Any) -> Any:
        """Open a `psycopg.Connection` to the particle's database. The next fork, or `close`, closes it.

        Args:
            options: of `psycopg.connect`.

        Raises:
            WorldError: the server refuses the connection.
        """
        with server_errors("connecting"):
            connection = psycopg.connect(self._databases.dsn(self.name), **options)
        self._connections = [each for each in self._connections if not each.closed] + [connection]
        return connection

    async def fork(self, seed: int) -> PostgresFork:
        """Copy the particle's database. The seed is unused, since a database has no randomness.

        Raises:
            ForkError: a connection of this world is inside a query or a write transaction, or another connection uses
                the particle's database.
        """
        self._disconnect_for_copy()
        twin = object.__new__(PostgresFork)
        twin._databases, twin._base, twin._connections, twin._name = self._databases, self._base, [], None
        target = self._databases.reserve()
        try:
            await asyncio.to_thread(self._databases.copy, self.name, target)
        except BaseException:
            self._databases.abandon(target)
            raise
        twin._name = target
        self._base.users += 1
        return twin

    async def close(self) -> None:
        """Close all connections and drop the particle's database; safe to call twice."""
        name, self._name = self._name, None
        self._disconnect()
        if name is not None:
            try:
                await asyncio.to_thread(self._databases.drop, name)
            finally:
                await asyncio.to_thread(self._base.leave)

    async def snapshot(self) -> str:
        """Save the particle's database as a database of the server, and close the connections to it.

        Raises:
            ForkError: a connection of this world is inside a query or a write transaction, or another connection uses
                the particle's database.
        """
        self._disconnect_for_copy()
        return await asyncio.to_thread(save_snapshot, self._databases, self._base.key, self._base.name, self.name)

    async def restore(self, snapshot: Any) -> None:
        """Replace the particle's database by a saved database, and close the connections to it.

        Saved changes that the original has received meanwhile, by `apply`, no longer count as changes.

        Raises:
            WorldError: the snapshot does not exist.
        """
        self._disconnect()
        await asyncio.to_thread(self._restore, snapshot)

    async def release(self, snapshot: Any) -> None:
        """Drop a snapshot; safe to call twice."""
        await asyncio.to_thread(release_snapshot, self._databases, snapshot)

    def changes(self) -> list[RowChange]:
        """The committed changes of the particle's rows, by table and key. Reads all tables completely.

        Raises:
            WorldError: the particle has changed the schema, or a table without a primary key.
        """
        return [row.change for row in self._changed_rows()]

    def diff(self) -> str:
        """The particle's changes, one line per row: `+` added, `-` deleted, `~` modified."""
        return row_diff(self.changes())

    def apply(self) -> list[RowChange]:
        """Write the particle's changes to the original in one serializable transaction, and return them.

        Sequences of the original are advanced to those of the particle. Triggers of the original fire.

        Raises:
            Conflict: a row that the particle changed has also changed in the original since the run began.
            WorldError: a schema or a table without a primary key has changed, or the original rejects a change: by a
                constraint, a concurrent transaction, or a trigger or cascade that changes further rows. If the
                connection is lost while the transaction is committed, the changes may have been written; `apply` again
                writes what is missing.
        """
        rows = self._changed_rows()
        with ExitStack() as stack:
            with server_errors("applying the changes, of which nothing was written"):
                copy, original = (
                    stack.enter_context(open_for_rows(self._databases.dsn(name)))
                    for name in (self.name, self._databases.original)
                )
                write_rows(copy, original, rows, self._databases.original)
            self._commit(original)
        return [row.change for row in rows]

    def _commit(self, original: Any) -> None:
        try:
            with server_errors("applying the changes, of which nothing was written"):
                original.commit()
        except WorldError as error:
            if not original.broken:
                raise
            raise WorldError(
                "the connection to PostgreSQL was lost while the changes were committed, so they may have been "
                "written: apply them again, which writes only what is missing"
            ) from error

    def conflicts(self) -> list[str]:
        """Rows that the particle changed and that have also changed in the original, to something else."""
        rows = self._changed_rows()
        with server_errors("comparing rows"), open_for_rows(self._databases.dsn(self._databases.original)) as original:
            return conflicting_rows(original, rows)

    def _restore(self, snapshot: Any) -> None:
        old, base, name = self.name, _Shared(self._databases, self._databases.reserve()), self._databases.reserve()
        try:
            restore_snapshot(self._databases, snapshot, base.name, name)
        except BaseException:
            self._databases.abandon(name, base.name)
            raise
        previous, self._base, self._name = self._base, base, name
        self._databases.drop(old)
        previous.leave()
        self._forget_applied()

    def _forget_applied(self) -> None:
        """Write changes that the original has received to the state to compare with, if nothing prevents it."""
        dsns = [self._databases.dsn(name) for name in (self.name, self._databases.original, self._base.name)]
        try:
            rows = self._changed_rows()
            with server_errors("comparing rows"), ExitStack() as stack:
                copy, original, base = (stack.enter_context(open_for_rows(dsn)) for dsn in dsns)
                write_rows(copy, base, applied_rows(original, rows), self._base.name)
        except WorldError as error:
            log(
                _log,
                logging.DEBUG,
                "world.not_rebased",
                "changes that the original has already still count as changes: %(text)s",
                text=error,
            )

    def _changed_rows(self) -> list[ChangedRow]:
        with server_errors("comparing databases"), ExitStack() as stack:
            before, after = (
                stack.enter_context(open_for_rows(self._databases.dsn(name))) for name in (self._base.name, self.name)
            )
            return changed_rows(before, after)

    def _disconnect_for_copy(self) -> None:
        if any(_is_writing(connection) for connection in self._connections):
            raise ForkError(
                "PostgresFork cannot copy a database inside an open write transaction: commit at the end of each tool "
                "call, or use `with world.connect() as connection:`"
            )
        self._disconnect()

    def _disconnect(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()


class _Shared:
    """The original at the beginning of the run, shared by all forks."""

    def __init__(self, databases: Databases, name: str) -> None:
        self.name, self.users = name, 1
        self.key = secrets.token_hex(8)
        """Identifies this state in the names of snapshots."""
        self._databases = databases

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            self._databases.drop(self.name)


def _is_writing(connection: Any) -> bool:
    """True if a connection is in a query or a transaction with writes. Reading transactions may be closed."""
    status = connection.info.transaction_status.name
    if status != "INTRANS":
        return bool(status == "ACTIVE")
    (writing,) = connection.execute("SELECT pg_current_xact_id_if_assigned() IS NOT NULL").fetchone()
    return bool(writing)
