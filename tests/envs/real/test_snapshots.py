from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from datetime import timedelta

import pytest

from amc_agents.envs.real import Conflict, DirectoryFork, ProcessFork, SqliteFork, WorldBundle, remove_snapshots
from amc_agents.errors import ForkError, WorldError
from amc_agents.testing import check_restorable
from amc_agents.types import Restorable
from tests.envs.real.process_worlds import Dice, Saved


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "original"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("one\n")
    (folder / "b.txt").write_text("b\n")
    (folder / "link").symlink_to("b.txt")
    return folder


@pytest.fixture
def database(tmp_path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.executescript(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT); CREATE TABLE log (line TEXT);"
            "CREATE TRIGGER t AFTER UPDATE ON orders BEGIN INSERT INTO log VALUES (new.id || new.state); END;"
            "INSERT INTO orders VALUES (1, 'open'), (2, 'open')"
        )
    return tmp_path / "shop.db"


@pytest.fixture
def make_files(folder, workspaces):
    return lambda: DirectoryFork(folder, workspace=workspaces)


@pytest.fixture
def make_database(database, workspaces):
    return lambda: SqliteFork(database, workspace=workspaces)


def edit(world, number):
    (world.path / "src" / "a.py").write_text(f"{number}\n")
    (world.path / f"new{number}").write_text("new\n")
    (world.path / "b.txt").unlink(missing_ok=True)


def read_files(world):
    files = sorted(path for path in world.path.rglob("*") if path.is_file())
    return [(path.relative_to(world.path).as_posix(), path.read_text()) for path in files], world.diff()


def write(world, number):
    with closing(world.connect()) as connection, connection:
        connection.execute("UPDATE orders SET state = ? WHERE id = 1", (f"state{number}",))


def read_rows(world):
    with closing(world.connect()) as connection:
        return connection.execute("SELECT * FROM orders").fetchall(), world.diff()


async def test_folders_are_restorable(make_files, workspaces):
    await check_restorable(make_files, edit, read_files)
    assert list(workspaces.iterdir()) == []


async def test_sqlite_databases_are_restorable(make_database, workspaces):
    await check_restorable(make_database, write, read_rows)
    assert list(workspaces.iterdir()) == []


async def test_a_bundle_is_restorable_if_all_its_worlds_are(make_files, make_database, workspaces):
    def change(world, number):
        edit(world.files, number)
        write(world.db, number)

    def make():
        return WorldBundle(files=make_files(), db=make_database())

    await check_restorable(make, change, lambda world: (read_files(world.files), read_rows(world.db)))
    assert list(workspaces.iterdir()) == []
    dice = ProcessFork(Dice)
    bundle = WorldBundle(dice=dice)
    assert not isinstance(bundle, Restorable)
    await bundle.close()


@pytest.mark.thorough
async def test_a_process_is_restorable_if_its_object_is(tmp_path, monkeypatch):
    monkeypatch.setenv("AMC_TEST_FOLDER", str(tmp_path))

    await check_restorable(
        lambda: ProcessFork(Saved), lambda world, number: world.object.set(number), lambda world: world.object.number
    )
    assert list(tmp_path.iterdir()) == []
    dice = ProcessFork(Dice)
    assert not isinstance(dice, Restorable)
    await dice.close()


async def test_a_bundle_saves_all_its_worlds_or_none(make_files, make_database, workspaces):
    bundle = WorldBundle(files=make_files(), db=make_database())
    connection = bundle.db.connect()
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(ForkError, match="transaction"):
        await bundle.snapshot()
    connection.rollback()
    assert list(workspaces.glob("amc-snapshot-*")) == []
    other = WorldBundle(files=make_files())
    with pytest.raises(WorldError, match="has the worlds files, but this WorldBundle has files, db"):
        await bundle.restore(await other.snapshot())
    await other.close()
    await bundle.close()


async def test_unchanged_files_of_a_snapshot_are_hard_links(make_files, workspaces):
    world = make_files()
    (world.path / "b.txt").write_text("changed\n")
    (world.path / "src" / "a.py").chmod(0o755)
    saved = workspaces / (await world.snapshot())["name"]
    same = {name: os.path.samefile(saved / "base" / name, saved / "state" / name) for name in ("b.txt", "src/a.py")}
    assert same == {"b.txt": False, "src/a.py": False}
    assert os.access(saved / "state" / "src" / "a.py", os.X_OK)
    (world.path / "src" / "a.py").chmod(0o644)
    saved = workspaces / (await world.snapshot())["name"]
    assert os.path.samefile(saved / "base" / "src" / "a.py", saved / "state" / "src" / "a.py")
    await world.close()


async def test_where_hard_links_are_impossible_files_are_copied(make_files, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    await check_restorable(make_files, edit, read_files)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["files", "db"])
async def test_a_snapshot_survives_kill_9_and_the_sweep_of_orphans(
    kind, folder, database, workspaces, make_files, make_database
):
    make, change, read = {
        "files": (make_files, edit, read_files),
        "db": (make_database, write, read_rows),
    }[kind]
    script = f"""
        import asyncio, json, sys, time
        from pathlib import Path
        from amc_agents.envs.real import DirectoryFork, SqliteFork
        from tests.envs.real.test_snapshots import edit, write

        if {kind!r} == "files":
            world = DirectoryFork({str(folder)!r}, workspace={str(workspaces)!r})
            edit(world, 1)
        else:
            world = SqliteFork({str(database)!r}, workspace={str(workspaces)!r})
            write(world, 1)
        print(json.dumps(asyncio.run(world.snapshot())), flush=True)
        time.sleep(60)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    assert process.stdout is not None
    with process.stdout:
        reference = json.loads(await asyncio.to_thread(process.stdout.readline))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(list(workspaces.glob("amc-worlds-*"))) == 1
    world, same = make(), make()
    change(same, 1)
    await world.restore(reference)
    assert read(world) == read(same)
    assert len(list(workspaces.glob("amc-worlds-*"))) == 2
    await world.release(reference)
    await world.close()
    await same.close()
    assert list(workspaces.iterdir()) == []


@pytest.mark.parametrize("reference", [None, "x", {"name": "../original"}, {"name": "amc-snapshot-1-../../original"}])
async def test_only_references_of_snapshots_are_read_or_deleted(reference, make_files, folder):
    world = make_files()
    for call in (world.restore, world.release):
        with pytest.raises(WorldError, match="expected a reference"):
            await call(reference)
    await world.close()
    assert (folder / "b.txt").exists()


async def test_a_snapshot_that_lost_files_is_refused_and_the_world_is_as_before(make_files, make_database, workspaces):
    world = make_files()
    reference = await world.snapshot()
    (workspaces / reference["name"] / "state" / "b.txt").unlink()
    before = read_files(world)
    with pytest.raises(WorldError, match="damaged: 5 files of 6"):
        await world.restore(reference)
    assert read_files(world) == before
    await world.close()
    database = make_database()
    reference = await database.snapshot()
    (workspaces / reference["name"] / "state").write_bytes(b"no database" * 1000)
    with pytest.raises(WorldError, match="damaged: file is not a database"):
        await database.restore(reference)
    assert read_rows(database)[0] == [(1, "open"), (2, "open")]
    await database.close()


async def test_abandoned_snapshots_are_removed_by_age(make_files, workspaces):
    world = make_files()
    name = (await world.snapshot())["name"]
    old = f"amc-snapshot-1000-{name[-16:]}"
    shutil.copytree(workspaces / name, workspaces / old)
    (workspaces / "amc-snapshot-of-mine").mkdir()
    assert remove_snapshots(workspaces, older_than=timedelta(days=1)) == [workspaces / old]
    assert remove_snapshots(workspaces, older_than=timedelta()) == [workspaces / name]
    assert (workspaces / "amc-snapshot-of-mine").exists()
    await world.close()


async def test_changes_that_the_original_received_after_the_snapshot_are_no_changes(make_files, folder):
    first = make_files()
    edit(first, 1)
    reference = await first.snapshot()
    first.apply()
    second = make_files()
    await second.restore(reference)
    assert second.changes() == []
    (second.path / "src" / "a.py").write_text("again\n")
    (second.path / "new1").unlink()
    assert [change.path for change in second.apply()] == ["new1", "src/a.py"]
    assert (folder / "src" / "a.py").read_text() == "again\n"
    third = make_files()
    await third.restore(reference)
    assert (third.path / "src" / "a.py").read_text() == "1\n"
    with pytest.raises(Conflict, match=r"in src/a\.py"):
        third.apply()
    for world in (first, second, third):
        await world.close()


async def test_rows_that_the_original_received_after_the_snapshot_are_no_changes(make_database, database):
    first = make_database()
    write(first, 1)
    with closing(first.connect()) as connection, connection:
        connection.execute("INSERT INTO orders VALUES (3, 'new')")
        connection.execute("DELETE FROM orders WHERE id = 2")
    reference = await first.snapshot()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("DROP TRIGGER t")
    first.apply()
    second = make_database()
    await second.restore(reference)
    assert second.changes() == []
    write(second, 2)
    second.apply()
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT * FROM orders").fetchall() == [(1, "state2"), (3, "new")]
    await first.close()
    await second.close()


async def test_a_second_apply_writes_nothing_new(make_files, make_database, database):
    files, db = make_files(), make_database()
    edit(files, 1)
    with closing(db.connect()) as connection, connection:
        connection.execute("INSERT INTO orders VALUES (3, 'new')")
    assert files.apply() == files.apply()
    assert db.apply() == db.apply()
    await files.close()
    await db.close()


async def test_a_bundle_checks_for_conflicts_before_it_writes(make_files, make_database, folder, database):
    bundle = WorldBundle(files=make_files(), db=make_database())
    edit(bundle.files, 1)
    write(bundle.db, 1)
    assert bundle.diff().startswith("# files\n--- a/b.txt")
    assert "# db\n+ log ('1state1',)\n~ orders" in bundle.diff()
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE orders SET state = 'mine' WHERE id = 1")
    with pytest.raises(Conflict, match=r"db: log \(1,\), db: orders \(1,\)"):
        bundle.apply()
    assert (folder / "src" / "a.py").read_text() == "one\n"
    await bundle.close()


async def test_a_bundle_says_which_worlds_were_applied_before_a_failure(make_files, make_database, database):
    bundle = WorldBundle(files=make_files(), db=make_database())
    edit(bundle.files, 1)
    with closing(bundle.db.connect()) as connection, connection:
        connection.execute("INSERT INTO orders VALUES (3, 'new')")
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("CREATE TRIGGER no BEFORE INSERT ON orders BEGIN SELECT RAISE(ABORT, 'closed'); END")
    with pytest.raises(WorldError, match=r"db were not applied \(.*closed.*applied before: files"):
        bundle.apply()
    await bundle.close()
