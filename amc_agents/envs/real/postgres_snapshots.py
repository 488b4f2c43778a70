"""Saved states of PostgreSQL databases, which remain until they are released or removed by age.

The original at the beginning of a run is saved once for all snapshots of the run, and dropped with the last of them.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from amc_agents.envs.real.postgres_databases import Databases
from amc_agents.errors import WorldError
from amc_agents.quoting import quoted

PREFIX = "amc_snapshot_"
"""Beginning of the names of all snapshots, then the key of the run and the time of creation, or `base`."""
_NAME = re.compile(rf"{PREFIX}([0-9a-f]{{16}})_(\d+)_[0-9a-f]{{8}}")


def save(databases: Databases, key: str, base: str, state: str) -> str:
    """Save a database, and return the name of the snapshot.

    Args:
        databases: of the server.
        key: of the run.
        base: the original at the beginning of the run.
        state: the database, which has no connections.
    """
    if _base(key) not in databases.names():
        databases.copy(base, _base(key))
    name = f"{PREFIX}{key}_{int(time.time())}_{secrets.token_hex(4)}"
    databases.copy(state, name)
    return name


def restore(databases: Databases, snapshot: Any, base: str, state: str) -> None:
    """Create the databases of a world from a snapshot.

    Raises:
        WorldError: the snapshot does not exist.
    """
    match = _match(snapshot)
    databases.copy_snapshot(_base(match[1]), base)
    databases.copy_snapshot(match[0], state)


def release(databases: Databases, snapshot: Any) -> None:
    """Drop a snapshot, and the original with the last snapshot of its run. Safe to call twice."""
    match = _match(snapshot)
    databases.drop_snapshot(match[0])
    if not any(name.startswith(f"{PREFIX}{match[1]}_") for name in databases.names() if name != _base(match[1])):
        databases.drop_snapshot(_base(match[1]))


def remove_snapshots(dsn: str, *, older_than: timedelta) -> Sequence[str]:
    """Remove abandoned snapshots of PostgreSQL databases, such as those of deleted threads, and return their names.

    Args:
        dsn: a connection string or URL of the original database, as of `PostgresFork`.
        older_than: minimum age. Zero removes all of the role's snapshots on the server.
    """
    with Databases.connected(dsn) as databases:
        latest = time.time() - older_than.total_seconds()
        matches = filter(None, map(_NAME.fullmatch, databases.names()))
        old = [match[0] for match in matches if int(match[2]) <= latest]
        for name in old:
            release(databases, name)
        return old


def _base(key: str) -> str:
    return f"{PREFIX}{key}_base"


def _match(snapshot: Any) -> re.Match[str]:
    match = _NAME.fullmatch(snapshot) if isinstance(snapshot, str) else None
    if match is None:
        raise WorldError(f"expected a reference that snapshot() returned, got {quoted(snapshot, 100)}")
    return match
