"""PostgreSQL databases of a run: temporary copies, and saved states.

Copies are dropped even if the process was killed. Snapshots remain until they are released or removed by age; the
original at the beginning of a run is saved once for all snapshots of the run, and dropped with the last of them.
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import psycopg

from amc_agents.errors import ConfigurationError, ForkError, WorldError
from amc_agents.logs import log
from amc_agents.quoting import excerpt, masked, quoted

_log = logging.getLogger(__name__)

PREFIX = "amc_world_"
"""Beginning of the names of all copies."""
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{16}})_\d+")
_CHECK = "Check that the server runs and accepts connections; its log says why it ends them"
_MOST_SAID = 160
_MAINTENANCE = "postgres"
"""Database of the connection that creates and drops copies. Advisory locks are local to a database."""
_OWN_DATABASES = "SELECT datname FROM pg_database WHERE pg_get_userbyid(datdba) = current_user"


class Databases:
    """Copies of a database, which are dropped with their last user.

    Their names contain a random key. A connection of this process holds an advisory lock on the key. The server
    releases the lock if the process is killed, and the next `Databases` of the same role then drops the copies.

    Args:
        dsn: a connection string or URL of the original database.

    Raises:
        ConfigurationError: the string is invalid, names no database, or the server cannot be reached.
    """

    def __init__(self, dsn: str) -> None:
        try:
            self.original: str = psycopg.conninfo.conninfo_to_dict(dsn).get("dbname", "")
        except psycopg.ProgrammingError as error:
            raise ConfigurationError(f"PostgresFork cannot parse the connection string: {masked(str(error))}") from None
        if self.original in ("", _MAINTENANCE):
            raise ConfigurationError(
                "PostgresFork expects a connection string that names the database to copy, such as "
                f"postgresql://host/shop, got {quoted(self.original or 'no name')}"
            )
        self._dsn = dsn
        try:
            self._connection = psycopg.connect(self.dsn(_MAINTENANCE), autocommit=True)
        except psycopg.OperationalError as error:
            raise ConfigurationError(f"PostgresFork cannot connect: {said(error)}. {_CHECK}") from None
        key = secrets.randbits(63)
        try:
            with server_errors("dropping abandoned copies"):
                self._drop_orphans()
                self._connection.execute("SELECT pg_advisory_lock(%s)", (key,))
        except BaseException:
            self._connection.close()
            raise
        self._names: Iterator[str] = (f"{PREFIX}{key:016x}_{number}" for number in count())
        self._in_use: set[str] = set()

    @classmethod
    @contextmanager
    def connected(cls, dsn: str) -> Iterator[Databases]:
        """Connect for the time of a block, without copies."""
        databases = cls(dsn)
        try:
            yield databases
        finally:
            databases._connection.close()

    def dsn(self, name: str) -> str:
        """Return the connection string of a database on the same server."""
        dsn: str = psycopg.conninfo.make_conninfo(self._dsn, dbname=name)
        return dsn

    def reserve(self) -> str:
        """Return the name of a new copy, which `drop` must be called with."""
        name = next(self._names)
        self._in_use.add(name)
        return name

    def copy(self, source: str, target: str) -> None:
        """Create a database as a copy of another.

        Raises:
            ForkError: the source is in use by another connection.
            ConfigurationError: the source does not exist, or the role may not copy it.
        """
        errors = psycopg.errors
        with server_errors(f"copying {source}"):
            try:
                self._connection.execute(f"CREATE DATABASE {target} TEMPLATE {as_identifier(source)}")
            except errors.ObjectInUse as error:
                raise ForkError(
                    f"cannot copy the database {source}, because other connections use it. Close them "
                    "(pg_stat_activity lists them); inside a world, connect only through PostgresFork.connect()"
                ) from error
            except (errors.InsufficientPrivilege, errors.InvalidCatalogName) as error:
                raise ConfigurationError(
                    f"PostgresFork cannot copy {source}: {error}. It expects a role that has CREATEDB and owns it"
                ) from error

    def copy_snapshot(self, source: str, target: str) -> None:
        """Copy a database of a snapshot.

        Raises:
            WorldError: the snapshot does not exist.
        """
        try:
            self.copy(source, target)
        except ConfigurationError as error:
            raise WorldError(f"the snapshot {source} cannot be restored: {error}") from error

    def drop(self, name: str) -> None:
        """Drop a copy, and disconnect with the last one. Safe to call twice."""
        if name not in self._in_use:
            return
        self._in_use.discard(name)
        try:
            with server_errors(f"dropping {name}"):
                self._drop(name)
        finally:
            if not self._in_use:
                self._connection.close()

    def abandon(self, *names: str) -> None:
        """Drop copies after an error, which remains the error: where dropping fails too, the next run drops them."""
        for name in names:
            try:
                self.drop(name)
            except WorldError as error:
                log(
                    _log,
                    logging.WARNING,
                    "world.copy_left",
                    "cannot drop the copy %(copy)s; the next run on this server drops it: %(text)s",
                    copy=name,
                    text=error,
                )

    def drop_snapshot(self, name: str) -> None:
        """Drop a database of a snapshot. Safe to call twice."""
        with server_errors(f"dropping {name}"):
            self._drop(name)

    def names(self) -> list[str]:
        """Return the names of the role's databases."""
        return [name for (name,) in self._connection.execute(_OWN_DATABASES).fetchall()]

    def _drop(self, name: str) -> None:
        self._connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _drop_orphans(self) -> None:
        for match in filter(None, map(_NAME.fullmatch, self.names())):
            key = (int(match[1], 16),)
            if self._connection.execute("SELECT pg_try_advisory_lock(%s)", key).fetchone()[0]:
                try:
                    self._drop(match[0])
                except psycopg.Error as error:
                    log(
                        _log,
                        logging.WARNING,
                        "world.copy_left",
                        "cannot drop the copy %(copy)s of a killed process: %(text)s",
                        copy=match[0],
                        text=error,
                    )
                self._connection.execute("SELECT pg_advisory_unlock(%s)", key)


@contextmanager
def server_errors(action: str) -> Iterator[None]:
    """Raise errors of the server and of the connection as `WorldError`."""
    try:
        yield
    except psycopg.Error as error:
        remedy = f". {_CHECK}" if isinstance(error, psycopg.OperationalError) else ""
        raise WorldError(f"PostgreSQL reported an error in {action}: {said(error)}{remedy}") from error


def said(error: Exception) -> str:
    """Return an error's text in one line of bounded length, without credentials."""
    return excerpt(str(error), _MOST_SAID)


def as_identifier(name: str) -> str:
    """Quote an identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


SNAPSHOT_PREFIX = "amc_snapshot_"
"""Beginning of the names of all snapshots, then the key of the run and the time of creation, or `base`."""
_SNAPSHOT_NAME = re.compile(rf"{SNAPSHOT_PREFIX}([0-9a-f]{{16}})_(\d+)_[0-9a-f]{{8}}")


def save_snapshot(databases: Databases, key: str, base: str, state: str) -> str:
    """Save a database, and return the name of the snapshot.

    Args:
        databases: of the server.
        key: of the run.
        base: the original at the beginning of the run.
        state: the database, which has no connections.
    """
    if _base(key) not in databases.names():
        databases.copy(base, _base(key))
    name = f"{SNAPSHOT_PREFIX}{key}_{int(time.time())}_{secrets.token_hex(4)}"
    databases.copy(state, name)
    return name


def restore_snapshot(databases: Databases, snapshot: Any, base: str, state: str) -> None:
    """Create the databases of a world from a snapshot.

    Raises:
        WorldError: the snapshot does not exist.
    """
    match = _match(snapshot)
    databases.copy_snapshot(_base(match[1]), base)
    databases.copy_snapshot(match[0], state)


def release_snapshot(databases: Databases, snapshot: Any) -> None:
    """Drop a snapshot, and the original with the last snapshot of its run. Safe to call twice."""
    match = _match(snapshot)
    databases.drop_snapshot(match[0])
    if not any(
        name.startswith(f"{SNAPSHOT_PREFIX}{match[1]}_") for name in databases.names() if name != _base(match[1])
    ):
        databases.drop_snapshot(_base(match[1]))


def remove_snapshots(dsn: str, *, older_than: timedelta) -> Sequence[str]:
    """Remove abandoned snapshots of PostgreSQL databases, such as those of deleted threads, and return their names.

    Args:
        dsn: a connection string or URL of the original database, as of `PostgresFork`.
        older_than: minimum age. Zero removes all of the role's snapshots on the server.
    """
    with Databases.connected(dsn) as databases:
        latest = time.time() - older_than.total_seconds()
        matches = filter(None, map(_SNAPSHOT_NAME.fullmatch, databases.names()))
        old = [match[0] for match in matches if int(match[2]) <= latest]
        for name in old:
            release_snapshot(databases, name)
        return old


def _base(key: str) -> str:
    return f"{SNAPSHOT_PREFIX}{key}_base"


def _match(snapshot: Any) -> re.Match[str]:
    match = _SNAPSHOT_NAME.fullmatch(snapshot) if isinstance(snapshot, str) else None
    if match is None:
        raise WorldError(f"expected a reference that snapshot() returned, got {quoted(snapshot, 100)}")
    return match
