"""A proxy in front of PostgreSQL that cuts, resets or delays a connection at each message of a world's life.

AMC_TEST_POSTGRES_URL names a server whose role may create databases.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from amc_agents.errors import AmcError, WorldError
from tests.faults.leftovers import nothing_left
from tests.faults.test_wire import checked_message
from tests.faults.wire import served

pytest.importorskip("psycopg")
from amc_agents_postgres import PostgresFork
from amc_agents_postgres.databases import PREFIX

URL = os.environ.get("AMC_TEST_POSTGRES_URL", "")
ORIGINAL = "amc_test_faults"
BEFORE, AFTER = [(1, 4), (2, 2)], [(1, 3), (2, 2), (3, 9)]


class Proxy:
    """Passes messages between clients and the server on, and breaks the connection of the n-th message."""

    def __init__(self, host: str, port: int, fault: str, broken_at: int) -> None:
        self.host, self.port = host, port
        self.fault, self.broken_at, self.seen = fault, broken_at, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self.host, self.port)
        both = (writer, up_writer)
        await asyncio.gather(self.pump(reader, up_writer, both), self.pump(up_reader, writer, both))

    async def pump(self, source, sink, both) -> None:
        try:
            while data := await source.read(1 << 16):
                number, self.seen = self.seen, self.seen + 1
                if number == self.broken_at:
                    if self.fault == "late":
                        await asyncio.sleep(0.1)
                    else:
                        break
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        for each in both:
            if self.fault == "reset" and self.seen > self.broken_at >= 0:
                each.transport.abort()
            else:
                each.close()


class Server:
    """The server itself, past the proxy."""

    def __init__(self, psycopg) -> None:
        self.psycopg = psycopg

    def __call__(self, *statements, dbname="postgres"):
        dsn = self.psycopg.conninfo.make_conninfo(URL, dbname=dbname)
        with self.psycopg.connect(dsn, autocommit=True) as connection:
            results = [connection.execute(statement) for statement in statements]
            return results[-1].fetchall() if results[-1].description else None


@pytest.fixture(scope="module")
def server():
    if not URL:
        pytest.skip("AMC_TEST_POSTGRES_URL names no Postgres server")
    server = Server(pytest.importorskip("psycopg"))
    yield server
    server(f"DROP DATABASE IF EXISTS {ORIGINAL} WITH (FORCE)")


def renewed(server) -> None:
    server(f"DROP DATABASE IF EXISTS {ORIGINAL} WITH (FORCE)", f"CREATE DATABASE {ORIGINAL}")
    server("CREATE TABLE stock (id int PRIMARY KEY, n int)", "INSERT INTO stock VALUES (1, 4), (2, 2)", dbname=ORIGINAL)


def rows(server) -> list[tuple[int, int]]:
    return server("SELECT * FROM stock ORDER BY id", dbname=ORIGINAL)


async def life(dsn: str, happened: list[str]) -> None:
    """A world, its fork, a write, the fork's changes in the original, and the end of both."""
    worlds: list[PostgresFork] = []
    try:
        worlds.append(PostgresFork(dsn))
        with worlds[0].connect() as connection:
            connection.execute("UPDATE stock SET n = 3 WHERE id = 1")
            connection.execute("INSERT INTO stock VALUES (3, 9)")
        worlds.append(await worlds[0].fork(1))
        assert len(worlds[1].changes()) == 2
        happened.append("applying")
        try:
            worlds[1].apply()
        except WorldError as error:
            happened.append(str(error))
            if "may have been written" not in str(error):
                raise
            worlds[1].apply()  # What is written already is no conflict.
        happened.append("applied")
    finally:
        for world in worlds:
            await closed(world)


async def closed(world: PostgresFork) -> None:
    try:
        await world.close()
    except AmcError as error:
        checked_message(str(error))


def run(server, fault: str, at: int) -> tuple[Proxy, list[str], BaseException | None]:
    info = server.psycopg.conninfo.conninfo_to_dict(URL)
    proxy = Proxy(info["host"], int(info.get("port", 5432)), fault, at)
    with nothing_left(), served(proxy.serve) as port:
        dsn = server.psycopg.conninfo.make_conninfo(
            URL, host="127.0.0.1", port=port, dbname=ORIGINAL, sslmode="disable", gssencmode="disable"
        )
        happened: list[str] = []
        try:
            asyncio.run(life(dsn, happened))
            return proxy, happened, None
        except (AmcError, server.psycopg.OperationalError) as error:
            return proxy, happened, error


@pytest.fixture(scope="module")
def messages(server):
    """The number of messages of a life without faults."""
    renewed(server)
    proxy, _, error = run(server, "late", -1)
    assert error is None
    assert rows(server) == AFTER
    return proxy.seen


@pytest.mark.parametrize("fault", ["cut", "reset", "late"])
def test_a_database_that_fails_has_a_named_outcome_and_keeps_the_original_whole(fault, server, messages):
    in_doubt = 0
    for at in range(0, messages, 1 if fault == "cut" else 7):
        renewed(server)
        _, happened, error = run(server, fault, at)
        found = rows(server)
        assert found in (BEFORE, AFTER), "all changes or none"
        if "applied" in happened:
            assert found == AFTER
        in_doubt += any("may have been written" in text for text in happened)
        if fault == "late":
            assert error is None
        elif isinstance(error, AmcError):
            checked_message(str(error))
            if "nothing was written" in str(error):
                assert found == BEFORE, at
        # A copy whose connection was lost is dropped by the next run.
        asyncio.run(PostgresFork(server.psycopg.conninfo.make_conninfo(URL, dbname=ORIGINAL)).close())
        assert not server(f"SELECT datname FROM pg_database WHERE datname LIKE '{PREFIX}%'"), at
    if fault == "cut":
        assert in_doubt >= 1, "a lost answer to COMMIT"
