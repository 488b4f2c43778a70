"""Copies of a PostgreSQL database. AMC_TEST_POSTGRES_URL names a server whose role may create databases."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents import EveryStep, amc, current_environment, effect
from amc_agents.envs.real import Conflict, RowChange
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ForkError, WorldError
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel, check_environment, check_restorable
from amc_agents.types import Task, TimeStep

pytest.importorskip("psycopg")
from amc_agents_postgres import PostgresFork, remove_snapshots
from amc_agents_postgres.databases import PREFIX
from amc_agents_postgres.databases import SNAPSHOT_PREFIX as SNAPSHOTS

HERE = Path(__file__).parent
ENVIRONMENT = os.environ | {"PYTHONPATH": f"{HERE.parent}:{HERE}"}
URL = os.environ.get("AMC_TEST_POSTGRES_URL", "")
ORIGINAL = "amc_test_shop"
SCHEMA = """
CREATE TABLE customers (id serial PRIMARY KEY, name text NOT NULL);
CREATE TABLE "Orders" (
    id int PRIMARY KEY, customer int REFERENCES customers ON DELETE CASCADE, t timestamptz, total float8,
    more jsonb, twice float8 GENERATED ALWAYS AS (total * 2) STORED
);
CREATE TABLE parcels (id int PRIMARY KEY, "order" int REFERENCES "Orders");
CREATE TABLE stock (shop text, item text, n int, PRIMARY KEY (shop, item));
CREATE TABLE lines (text text);
INSERT INTO customers (name) VALUES ('Ann'), ('Bob');
INSERT INTO "Orders" VALUES (1, 1, '2026-01-01', 0.1, '{"a": 1}'), (2, 2, NULL, NULL, NULL);
INSERT INTO "Orders" VALUES (3, 1);
INSERT INTO parcels VALUES (1, 3);
INSERT INTO stock VALUES ('north', 'clay', 4), ('south', 'clay', 2);
"""


@pytest.fixture
def psycopg():
    if not URL:
        pytest.skip("AMC_TEST_POSTGRES_URL names no Postgres server")
    return pytest.importorskip("psycopg")


@pytest.fixture
def dsn(psycopg):
    """Connection string of a new database."""
    dsn = psycopg.conninfo.make_conninfo(URL, dbname=ORIGINAL)
    with psycopg.connect(URL, autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {ORIGINAL} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {ORIGINAL}")
        with psycopg.connect(dsn) as connection:
            connection.execute(SCHEMA)
        yield dsn
        server.execute(f"DROP DATABASE IF EXISTS {ORIGINAL} WITH (FORCE)")


@pytest.fixture
async def world(dsn):
    world = PostgresFork(dsn)
    yield world
    await world.close()


@pytest.fixture
def original(psycopg, dsn):
    """Executes SQL in the original."""

    def execute(*statements):
        with psycopg.connect(dsn) as connection:
            results = [connection.execute(statement) for statement in statements]
            return results[-1].fetchall() if results[-1].description else None

    return execute


def run(world, *statements):
    with world.connect() as connection:
        results = [connection.execute(statement) for statement in statements]
        return results[-1].fetchall() if results[-1].description else None


def names(world, query="SELECT name FROM customers ORDER BY id"):
    return [name for (name,) in run(world, query)]


def copies(psycopg):
    with psycopg.connect(URL) as connection:
        rows = connection.execute("SELECT datname FROM pg_database").fetchall()
    return [name for (name,) in rows if name.startswith(PREFIX)]


async def test_a_fork_has_the_same_rows_and_its_own_future(world, original, psycopg):
    run(world, "UPDATE customers SET name = 'Eve' WHERE id = 1")
    twin = await world.fork(1)
    run(twin, "INSERT INTO customers (name) VALUES ('Joe')")
    run(world, "DELETE FROM customers WHERE id = 2")
    assert names(twin) == ["Eve", "Bob", "Joe"]
    assert names(world) == ["Eve"]
    assert original("SELECT name FROM customers ORDER BY id") == [("Ann",), ("Bob",)]
    await twin.close()
    await twin.close()
    await world.close()
    assert copies(psycopg) == []
    with pytest.raises(EnvironmentStateError, match="closed"):
        world.connect()


async def test_changes_are_rows_with_their_keys(world):
    run(
        world,
        """UPDATE "Orders" SET total = 0.3, more = '{"b": [1, null]}' WHERE id = 1""",
        "DELETE FROM stock WHERE shop = 'south'",
        "INSERT INTO customers (name) VALUES ('it''s, \"Joe\"')",
    )
    orders, customers, stock = sorted(world.changes(), key=lambda change: change.table)
    assert (orders.table, orders.key) == ('public."Orders"', (1,))
    assert orders.before
    assert orders.before[3:] == (0.1, {"a": 1}, 0.2)
    assert orders.after
    assert orders.after[3:] == (0.3, {"b": [1, None]}, 0.6)
    assert customers == RowChange("public.customers", (3,), None, (3, 'it\'s, "Joe"'))
    assert stock == RowChange("public.stock", ("south", "clay"), ("south", "clay", 2), None)
    assert "- public.stock ('south', 'clay', 2)\n" in world.diff()


async def test_apply_writes_the_changes_to_the_original(world, original):
    run(
        world,
        "DELETE FROM parcels",
        'DELETE FROM "Orders" WHERE id = 3',
        "DELETE FROM customers WHERE id = 2",
        "INSERT INTO customers (name) VALUES ('it''s, \"Joe\"\\')",
        """INSERT INTO "Orders" VALUES (7, 3, '2026-05-05 12:00:00.123456+02', 1e-300, '{"x": "\\u00e9"}')""",
        "UPDATE stock SET n = 3 WHERE shop = 'north'",
    )
    original("UPDATE stock SET n = 9 WHERE shop = 'south'")
    assert len(world.apply()) == 7
    for table in ("customers", '"Orders"', "parcels"):
        query = f"SELECT * FROM {table} ORDER BY id"
        assert original(query) == run(world, query)
    assert original("SELECT n FROM stock ORDER BY shop") == [(3,), (9,)]
    original("INSERT INTO customers (name) VALUES ('next')")
    assert original("SELECT max(id) FROM customers") == [(4,)], "the sequence was advanced"


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
async def test_a_kill_at_any_statement_of_apply_leaves_all_or_nothing(world, original, psycopg, monkeypatch):
    run(world, "UPDATE stock SET n = 3", "DELETE FROM parcels", "INSERT INTO customers (name) VALUES ('Joe')")
    query = (
        "SELECT array(SELECT stock::text FROM stock ORDER BY 1), array(SELECT name FROM customers ORDER BY 1), "
        "count(*) FROM parcels"
    )
    old, new, states = original(query), run(world, query), []
    for number in range(1, 200):
        process = os.fork()
        if process == 0:
            kill_at_statement(number, psycopg, monkeypatch)
            world.apply()
            os._exit(0)
        if os.waitpid(process, 0)[1] == 0:
            break
        states.append(original(query))
    assert number > 20
    assert all(state in (old, new) for state in states)
    assert states[0] == old
    assert original(query) == new
    assert len(world.apply()) == 4
    assert original(query) == new


def kill_at_statement(number, psycopg, monkeypatch):
    """Kill this process before the n-th statement, or commit."""
    seen = []

    def counted(call):
        def counted(*arguments, **named):
            seen.append(call)
            if len(seen) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments, **named)

        return counted

    for name in ("execute", "commit"):
        monkeypatch.setattr(psycopg.Connection, name, counted(getattr(psycopg.Connection, name)))


async def test_apply_refuses_rows_that_have_changed_in_the_original(world, original):
    run(world, "UPDATE stock SET n = 3", "INSERT INTO customers VALUES (9, 'mine')")
    original("UPDATE stock SET n = 8 WHERE shop = 'north'", "INSERT INTO customers VALUES (9, 'theirs')")
    with pytest.raises(Conflict) as refused:
        world.apply()
    assert set(refused.value.places) == {"public.customers (9,)", "public.stock ('north', 'clay')"}
    assert original("SELECT n FROM stock ORDER BY shop") == [(8,), (2,)]


async def test_apply_refuses_another_schema_of_the_original(world, original):
    run(world, "UPDATE stock SET n = 3")
    original("ALTER TABLE stock ADD COLUMN price float8")
    with pytest.raises(Conflict, match=r"the schema of public\.stock"):
        world.apply()


@pytest.mark.parametrize(
    ("obstacle", "message"),
    [
        ("ALTER TABLE stock ADD CHECK (n > 1)", "nothing was written.*violates check constraint"),
        (
            "CREATE FUNCTION log() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN INSERT INTO lines VALUES ('changed'); RETURN NEW; END $$;"
            "CREATE TRIGGER log AFTER UPDATE ON stock FOR EACH ROW EXECUTE FUNCTION log()",
            r"further rows, in public\.lines\. Nothing was written",
        ),
        ('INSERT INTO "Orders" VALUES (8, 2)', r'further rows, in public\."Orders"'),
    ],
    ids=["a constraint", "a trigger", "a cascade"],
)
async def test_the_original_undoes_the_whole_apply(world, original, obstacle, message):
    run(world, "DELETE FROM customers WHERE id = 2", "UPDATE stock SET n = 1")
    original(obstacle)
    with pytest.raises(WorldError, match=message):
        world.apply()
    assert original("SELECT n FROM stock ORDER BY shop") == [(4,), (2,)]
    assert original("SELECT count(*) FROM customers") == [(2,)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("ALTER TABLE stock ADD COLUMN price float8", "changed the schema"),
        ("INSERT INTO lines VALUES ('x')", r"changed public\.lines, which has no primary key"),
    ],
)
async def test_changes_that_cannot_be_compared_are_refused(world, change, message):
    run(world, change)
    with pytest.raises(WorldError, match=message):
        world.changes()


async def test_a_fork_inside_a_write_transaction_is_refused(world):
    connection = world.connect()
    connection.execute("UPDATE customers SET name = 'Eve'")
    with pytest.raises(ForkError, match="open write transaction: commit"):
        await world.fork(1)
    connection.commit()
    connection.execute("SELECT 1")
    twin = await world.fork(1)
    assert connection.closed
    assert set(names(twin)) == {"Eve"}
    await twin.close()


async def test_other_connections_are_named_in_the_error(psycopg, dsn):
    with psycopg.connect(dsn), pytest.raises(ForkError, match=f"copy the database {ORIGINAL}.* other connections"):
        PostgresFork(dsn)
    assert copies(psycopg) == []


def test_unusable_connection_strings_are_refused(psycopg):
    for database, message in [
        ("", "names the database to copy"),
        ("postgres", "names the database to copy"),
        ("missing", "does not exist"),
    ]:
        with pytest.raises(ConfigurationError, match=message):
            PostgresFork(psycopg.conninfo.make_conninfo(URL, dbname=database))
    with pytest.raises(ConfigurationError, match="cannot parse the connection string"):
        PostgresFork("nonsense")
    with pytest.raises(ConfigurationError, match="cannot connect"):
        PostgresFork("host=127.0.0.1 port=1 dbname=shop password=hunter22")
    assert copies(psycopg) == []


def test_copies_of_a_killed_process_are_dropped_by_the_next_world(psycopg, dsn):
    script = (
        "import sys, time; from amc_agents_postgres import PostgresFork\n"
        f"world = PostgresFork({dsn!r}); world.connect(); print('ready', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=HERE, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            of_process = copies(psycopg)
            assert len(of_process) == 2
            other = PostgresFork(dsn)
            assert set(of_process) < set(copies(psycopg)), "its owner is alive"
        finally:
            process.kill()
    next_world = wait_for_sweep(psycopg, dsn, of_process)
    for each in (other, next_world):
        each._databases.drop(each.name)
        each._base.leave()
    assert copies(psycopg) == []


def wait_for_sweep(psycopg, dsn, orphans):
    """Open worlds until the server has noticed the end of the process, which may take it a moment."""
    for _ in range(50):
        world = PostgresFork(dsn)
        if not set(orphans) & set(copies(psycopg)):
            return world
        world._databases.drop(world.name)
        world._base.leave()
    raise AssertionError("the copies are still there")


class Till:
    """A text world over a database: `add N` books an amount, `finish` ends the episode."""

    def __init__(self, dsn, database=None, done=False):
        self.dsn, self.database, self.done = dsn, database, done

    async def reset(self, task):
        await self.close()
        self.database, self.done = PostgresFork(self.dsn), False
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        if self.database is None or self.done:
            raise EnvironmentStateError("Till.step was called before reset or after the end")
        if action.startswith("add "):
            run(self.database, f"INSERT INTO lines VALUES ('{action[4:]}')")
        text = str(names(self.database, "SELECT text FROM lines"))
        self.done = action == "finish"
        return TimeStep.termination(text, 1.0) if self.done else TimeStep.transition(text)

    async def fork(self, seed):
        return Till(self.dsn, await self.database.fork(seed), self.done)

    async def close(self):
        if self.database is not None:
            await self.database.close()
            self.database = None


async def test_it_keeps_the_contract_of_environments(psycopg, dsn):
    await check_environment(lambda: Till(dsn), Task("till", "Book."), ["add 1", "add 2", "finish"])
    assert copies(psycopg) == []


@pytest.fixture
def snapshots(psycopg):
    """Lists the databases of snapshots."""

    def names():
        with psycopg.connect(URL, autocommit=True) as server:
            rows = server.execute("SELECT datname FROM pg_database ORDER BY datname").fetchall()
        return [name for (name,) in rows if name.startswith(SNAPSHOTS)]

    return names


def rename(world, number):
    with world.connect() as connection:
        connection.execute("UPDATE customers SET name = %s WHERE id = 1", (f"name {number}",))
        connection.execute("INSERT INTO stock VALUES ('east', %s, 1)", (f"item {number}",))


def seen(world):
    with world.connect() as connection:
        rows = connection.execute("SELECT * FROM customers ORDER BY id").fetchall()
    return rows, world.diff()


async def test_it_is_restorable(dsn, snapshots):
    await check_restorable(lambda: PostgresFork(dsn), rename, seen)
    assert snapshots() == []


async def test_a_snapshot_survives_kill_9_and_the_sweep_of_orphans(dsn, snapshots):
    script = (
        "import asyncio, os, signal, sys; from amc_agents_postgres import PostgresFork\n"
        "from test_world import rename\n"
        "world = PostgresFork(sys.argv[1]); rename(world, 1)\n"
        "print(asyncio.run(world.snapshot()), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, dsn],
        cwd=HERE,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    reference = killed.stdout.strip()
    world = PostgresFork(dsn)
    await world.restore(reference)
    assert seen(world)[0] == [(1, "name 1"), (2, "Bob")]
    assert len(world.changes()) == 2
    await world.release(reference)
    await world.close()
    assert snapshots() == []


async def test_several_snapshots_of_a_run_share_the_original(dsn, snapshots):
    world = PostgresFork(dsn)
    first, second = await world.snapshot(), await world.snapshot()
    assert len(snapshots()) == 3
    await world.release(first)
    assert len(snapshots()) == 2
    await world.restore(second)
    await world.release(second)
    assert snapshots() == []
    with pytest.raises(WorldError, match="expected a reference"):
        await world.release("postgres")
    await world.close()


async def test_rows_that_the_original_received_after_the_snapshot_are_no_changes(dsn, original):
    first = PostgresFork(dsn)
    rename(first, 1)
    reference = await first.snapshot()
    first.apply()
    assert first.apply() == first.changes(), "a second apply writes nothing new"
    second = PostgresFork(dsn)
    await second.restore(reference)
    assert second.changes() == []
    assert second.conflicts() == []
    rename(second, 2)
    second.apply()
    assert original("SELECT name FROM customers WHERE id = 1") == [("name 2",)]
    third = PostgresFork(dsn)
    await third.restore(reference)
    assert third.conflicts() == ["public.customers (1,)"]
    await third.release(reference)
    for world in (first, second, third):
        await world.close()


async def test_abandoned_snapshots_are_removed_by_age(dsn, snapshots):
    world = PostgresFork(dsn)
    reference = await world.snapshot()
    assert remove_snapshots(dsn, older_than=timedelta(days=1)) == []
    assert remove_snapshots(dsn, older_than=timedelta()) == [reference]
    assert snapshots() == []
    await world.close()


async def test_particles_work_in_their_own_databases_and_the_winners_rows_are_applied(dsn, original, psycopg):
    @tool
    @effect("world")
    def order(n: int) -> str:
        """Order pieces, and return the stock."""
        rows = run(
            current_environment(PostgresFork),
            f"UPDATE stock SET n = n + {n} WHERE shop = 'north'",
            "SELECT n FROM stock WHERE shop = 'north'",
        )
        return str(rows[0][0])

    def respond(messages):
        if sum(isinstance(message, ToolMessage) for message in messages) == 3:
            return "done"
        n = int(particle_rng().integers(1, 10))
        return AIMessage("", tool_calls=[{"name": "order", "args": {"n": n}, "id": f"{len(messages)}"}])

    def stock(trajectories):
        return [
            max([4.0, *(float(step.observation) for step in path.steps if step.observation)]) for path in trajectories
        ]

    agent = create_agent(ScriptedChatModel(respond=respond), [order])
    settings = {"n_particles": 4, "resample": EveryStep(), "beta": 2.0, "seed": 0}
    graph = amc(agent, stock, environment=lambda state: PostgresFork(dsn), **settings)
    async with await graph.arun({"messages": [("user", "order")]}) as done:
        for path in done.population.trajectories:
            ordered = [json.loads(step.action)["args"]["n"] for step in path.steps[:3]]
            assert [int(step.observation) for step in path.steps[:3]] == [4 + sum(ordered[:k]) for k in (1, 2, 3)]
        assert original("SELECT n FROM stock WHERE shop = 'north'") == [(4,)]
        final = int(done.best.steps[2].observation)
        assert [change.after for change in done.best_world.changes()] == [("north", "clay", final)]
        await asyncio.to_thread(done.best_world.apply)
    assert original("SELECT n FROM stock WHERE shop = 'north'") == [(final,)]
    assert copies(psycopg) == []
