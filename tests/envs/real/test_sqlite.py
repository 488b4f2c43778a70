from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from contextlib import closing, contextmanager

import pytest

from amc_agents.envs.real import Conflict, RowChange, SqliteFork, sqlite
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ForkError, WorldError
from amc_agents.testing import check_environment
from amc_agents.types import Task, TimeStep

SCHEMA = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT NOT NULL, total REAL);
CREATE TABLE log (line TEXT);
CREATE TABLE stock (shop TEXT, item TEXT, n INTEGER, PRIMARY KEY (shop, item)) WITHOUT ROWID;
INSERT INTO orders VALUES (1, 'open', 9.5), (2, 'paid', NULL), (3, 'open', 1.0);
INSERT INTO log VALUES ('start');
INSERT INTO stock VALUES ('north', 'clay', 4), ('south', 'clay', 2);
"""


@pytest.fixture
def original(tmp_path):
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
    return path


@pytest.fixture
def world(original, workspaces):
    return SqliteFork(original, workspace=workspaces)


def rows(path, table="orders"):
    with closing(sqlite3.connect(path)) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


def run(place, *statements):
    """Execute statements in a world, or in the database of a file."""
    connect = place.connect if isinstance(place, SqliteFork) else lambda: sqlite3.connect(place)
    with closing(connect()) as connection, connection:
        for statement in statements:
            connection.execute(statement)


async def test_a_fork_has_the_same_rows_and_its_own_future(world, original):
    run(world, "UPDATE orders SET state = 'refunded' WHERE id = 1")
    twin = await world.fork(1)
    run(twin, "DELETE FROM orders WHERE id = 2")
    run(world, "UPDATE orders SET state = 'sent' WHERE id = 3")
    assert rows(twin.path) == [(1, "refunded", 9.5), (3, "open", 1.0)]
    assert rows(world.path) == [(1, "refunded", 9.5), (2, "paid", None), (3, "sent", 1.0)]
    assert rows(original) == [(1, "open", 9.5), (2, "paid", None), (3, "open", 1.0)]


async def test_changes_are_rows_with_their_keys(world):
    run(
        world,
        "UPDATE orders SET state = 'sent', total = NULL WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO log VALUES ('it''s sent')",
        "UPDATE stock SET n = 3 WHERE shop = 'north'",
    )
    assert world.changes() == [
        RowChange("log", (2,), None, ("it's sent",)),
        RowChange("orders", (1,), (1, "open", 9.5), (1, "sent", None)),
        RowChange("orders", (2,), (2, "paid", None), None),
        RowChange("stock", ("north", "clay"), ("north", "clay", 4), ("north", "clay", 3)),
    ]
    assert world.diff().splitlines()[1:3] == [
        "~ orders (1, 'open', 9.5) -> (1, 'sent', None)",
        "- orders (2, 'paid', None)",
    ]


async def test_apply_writes_the_changes_to_the_original(world, original):
    run(
        world,
        "UPDATE orders SET state = 'sent' WHERE id = 1",
        "DELETE FROM orders WHERE id = 2",
        "INSERT INTO orders VALUES (9, 'new', 2.0)",
        "INSERT INTO log VALUES ('x')",
        "DELETE FROM stock WHERE shop = 'south'",
    )
    assert len(world.apply()) == 5
    for table in ("orders", "log", "stock"):
        assert rows(original, table) == rows(world.path, table)


async def test_apply_refuses_rows_that_have_changed_in_the_original(world, original):
    run(world, "UPDATE orders SET state = 'sent' WHERE id = 1", "INSERT INTO log VALUES ('mine')")
    with closing(sqlite3.connect(original)) as connection, connection:
        connection.execute("UPDATE orders SET total = 1 WHERE id = 1")
        connection.execute("INSERT INTO log VALUES ('theirs')")
    before = rows(original), rows(original, "log")
    with pytest.raises(Conflict, match=r"in log \(2,\), orders \(1,\)\. Nothing was written"):
        world.apply()
    assert (rows(original), rows(original, "log")) == before


async def test_rows_that_others_changed_meanwhile_are_kept(world, original):
    run(world, "UPDATE orders SET state = 'sent' WHERE id = 1")
    with closing(sqlite3.connect(original)) as connection, connection:
        connection.execute("UPDATE orders SET state = 'lost' WHERE id = 3")
    world.apply()
    assert [state for _, state, _ in rows(original)] == ["sent", "paid", "lost"]


async def test_a_constraint_of_the_original_undoes_the_whole_apply(world, original):
    run(world, "UPDATE orders SET state = 'sent' WHERE id = 1", "INSERT INTO orders VALUES (9, 'new', 2.0)")
    with closing(sqlite3.connect(original)) as connection, connection:
        connection.execute("CREATE TRIGGER no BEFORE INSERT ON orders BEGIN SELECT RAISE(ABORT, 'closed'); END")
    before = rows(original)
    with pytest.raises(WorldError, match=r"rejected the changes, of which nothing was written: closed"):
        world.apply()
    assert rows(original) == before


AUDIT = "CREATE TRIGGER audit AFTER UPDATE ON orders BEGIN INSERT INTO log VALUES (new.id || new.state); END"
UPDATE = "UPDATE orders SET state = 'sent' WHERE id = 1"


@pytest.mark.parametrize("again", [False, True])
async def test_a_trigger_fires_once(original, workspaces, again):
    with closing(sqlite3.connect(original)) as connection, connection:
        connection.execute(AUDIT)
    world = SqliteFork(original, workspace=workspaces)
    run(world, UPDATE)
    if again:
        reference = await world.snapshot()
        await world.restore(reference)
    world.apply()
    assert rows(original, "log") == [("1sent",), ("start",)]
    run(original, UPDATE)
    assert rows(original, "log") == [("1sent",), ("1sent",), ("start",)], "it is still there"


async def test_a_trigger_that_the_particle_never_had_fires(world, original):
    run(original, AUDIT)
    run(world, UPDATE)
    world.apply()
    assert rows(original, "log") == [("1sent",), ("start",)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.thorough)])  # each kill forks this process
async def test_a_kill_at_any_statement_leaves_all_or_nothing(original, workspaces, monkeypatch, stride):
    run(original, AUDIT)
    world = SqliteFork(original, workspace=workspaces)
    run(world, UPDATE, "DELETE FROM orders WHERE id = 2", "INSERT INTO stock VALUES ('west', 'clay', 1)")
    schema = rows(original, "sqlite_master")
    tables = ("orders", "log", "stock")
    old, new = ([rows(path, table) for table in tables] for path in (original, world.path))
    states = []
    for number in range(1, 200, stride):
        process = os.fork()
        if process == 0:
            kill_at_statement(number, monkeypatch)
            world.apply()
            os._exit(0)
        if os.waitpid(process, 0)[1] == 0:
            break
        states.append([rows(original, table) for table in tables])
        assert rows(original, "sqlite_master") == schema
    assert number > 20
    assert all(state == old for state in states)
    assert [rows(original, table) for table in tables] == new
    assert world.apply()
    assert [rows(original, table) for table in tables] == new


def kill_at_statement(number, monkeypatch):
    """Kill this process at the n-th statement of SQL."""
    seen, unwatched = [], sqlite.opened

    def count(statement):
        seen.append(statement)
        if len(seen) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def opened(*arguments):
        with unwatched(*arguments) as connection:
            connection.set_trace_callback(count)
            yield connection

    monkeypatch.setattr(sqlite, "opened", opened)


async def test_a_foreign_lock_is_an_error_after_a_time_limit(world, original, workspaces, monkeypatch):
    monkeypatch.setattr(sqlite, "LOCK_LIMIT_S", 0.02)
    run(world, UPDATE)
    for path, calls in {
        original: [lambda: SqliteFork(original, workspace=workspaces), world.apply, world.conflicts],
        world.path: [lambda: asyncio.run(world.fork(1)), lambda: asyncio.run(world.snapshot()), world.changes],
    }.items():
        with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN EXCLUSIVE")
            for call in calls:
                with pytest.raises((ForkError, WorldError), match=r"locked.*: end its transaction"):
                    await asyncio.wait_for(asyncio.to_thread(call), 20)
    assert len(list(workspaces.iterdir())) == 1
    assert len(world.apply()) == 1


@pytest.mark.parametrize("destroy", [lambda path: path.write_bytes(b"x" * 5000), lambda path: path.unlink()])
async def test_a_destroyed_database_is_an_error_that_names_it(world, original, destroy):
    run(world, UPDATE)
    path = world.path
    destroy(original)
    for call in (world.apply, world.conflicts):
        with pytest.raises(WorldError, match=rf"{original} .*: .*restore it"):
            call()
    assert not original.exists() or original.read_bytes()[:1] == b"x", "no new database stands in its place"
    destroy(path)
    for call in (world.changes, world.diff, lambda: asyncio.run(world.fork(1)), lambda: asyncio.run(world.snapshot())):
        with pytest.raises(WorldError, match=rf"{path}.*restore it"):
            await asyncio.to_thread(call)
    await world.close()


@pytest.mark.parametrize("change", ["ALTER TABLE log ADD COLUMN at TEXT", "CREATE INDEX i ON log (line)", AUDIT])
async def test_a_changed_schema_is_refused(world, change):
    run(world, change)
    with pytest.raises(WorldError, match="changed the schema"):
        world.changes()


async def test_a_fork_inside_a_transaction_is_refused(world, workspaces):
    connection = world.connect()
    connection.execute("UPDATE orders SET state = 'sent'")
    with pytest.raises(ForkError, match="open write transaction: commit"):
        await world.fork(1)
    connection.commit()
    twin = await world.fork(1)
    assert {state for _, state, _ in rows(twin.path)} == {"sent"}
    await twin.close()
    await world.close()
    await world.close()
    assert list(workspaces.iterdir()) == []
    with pytest.raises(EnvironmentStateError, match="closed"):
        world.connect()


async def test_a_database_with_a_write_ahead_log_is_copied(original, workspaces):
    with closing(sqlite3.connect(original)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        with connection:
            connection.execute("UPDATE orders SET state = 'wal'")
        world = SqliteFork(original, workspace=workspaces)
    twin = await world.fork(1)
    assert {state for _, state, _ in rows(twin.path)} == {"wal"}
    await twin.close()
    await world.close()
    assert list(workspaces.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "message"), [(None, "expects the file"), (b"x" * 2000, "cannot read .* as a database")]
)
def test_what_is_no_database_is_refused(tmp_path, workspaces, content, message):
    if content:
        (tmp_path / "file").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        SqliteFork(tmp_path / "file", workspace=workspaces)
    assert list(workspaces.iterdir()) == []


class Till:
    """A text world over a database: `add N` books an amount, `finish` ends the episode."""

    def __init__(self, original, workspace, database=None, done=False):
        self.original, self.workspace = original, workspace
        self.database, self.done = database, done

    async def reset(self, task):
        await self.close()
        self.database, self.done = SqliteFork(self.original, workspace=self.workspace), False
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        if self.database is None or self.done:
            raise EnvironmentStateError("Till.step was called before reset or after the end")
        if action == "finish":
            self.done = True
            return TimeStep.termination(str(rows(self.database.path, "log")), 1.0)
        if action.startswith("add "):
            run(self.database, f"INSERT INTO log VALUES ('{action[4:]}')")
        return TimeStep.transition(str(rows(self.database.path, "log")))

    async def fork(self, seed):
        return Till(self.original, self.workspace, await self.database.fork(seed), self.done)

    async def close(self):
        if self.database is not None:
            await self.database.close()
            self.database = None


async def test_it_keeps_the_contract_of_environments(original, workspaces):
    await check_environment(lambda: Till(original, workspaces), Task("till", "Book."), ["add 1", "add 2", "finish"])
