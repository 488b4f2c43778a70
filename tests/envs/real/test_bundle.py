from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from amc_agents.envs.real import DirectoryFork, SqliteFork, WorldBundle
from amc_agents.errors import ConfigurationError, ForkError


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "workspaces").mkdir()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
    places = {"workspace": tmp_path / "workspaces"}
    return WorldBundle(files=DirectoryFork(tmp_path / "files", **places), db=SqliteFork(tmp_path / "a.db", **places))


async def test_all_worlds_are_forked_and_closed_together(bundle, tmp_path):
    (bundle.files.path / "x").write_text("1")
    twin = await bundle.fork(1)
    (twin.files.path / "x").write_text("2")
    with closing(twin.db.connect()) as connection, connection:
        connection.execute("INSERT INTO t VALUES (1)")
    assert (bundle.files.path / "x").read_text() == "1"
    assert bundle.db.changes() == []
    assert len(twin.db.changes()) == 1
    await twin.close()
    await bundle.close()
    assert list((tmp_path / "workspaces").iterdir()) == []


async def test_if_one_cannot_be_forked_no_copy_remains(bundle, tmp_path):
    before = sum(1 for _ in (tmp_path / "workspaces").rglob("*"))
    connection = bundle.db.connect()
    connection.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(ForkError, match="transaction"):
        await bundle.fork(1)
    connection.rollback()
    assert sum(1 for _ in (tmp_path / "workspaces").rglob("*")) == before
    await bundle.close()
    assert list((tmp_path / "workspaces").iterdir()) == []


async def test_every_world_is_closed_though_one_fails():
    closed = []

    class World:
        def __init__(self, name):
            self.name = name

        async def fork(self, seed):
            return self

        async def close(self):
            closed.append(self.name)
            if self.name == "a":
                raise OSError("stuck")

    with pytest.raises(OSError, match="stuck"):
        await WorldBundle(a=World("a"), b=World("b")).close()
    assert closed == ["a", "b"]


def test_wrong_worlds_are_named(bundle):
    with pytest.raises(ConfigurationError, match="by name, got x"):
        WorldBundle(x=1)
    with pytest.raises(ConfigurationError, match="got none"):
        WorldBundle()
    with pytest.raises(AttributeError, match="worlds files, db, not 'mail'"):
        bundle.mail  # noqa: B018
