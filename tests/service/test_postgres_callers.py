"""Several callers of a thread in a Postgres checkpointer. AMC_TEST_POSTGRES_URL names a server with a test database."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module

import pytest

from tests.population.commits.callers import payer
from tests.population.commits.ledger import Ledger, start
from tests.population.commits.test_callers import call_together, check_paid_once

pytestmark = pytest.mark.service
URL = os.environ.get("AMC_TEST_POSTGRES_URL", "")


@pytest.fixture
def url():
    if not URL:
        pytest.skip("AMC_TEST_POSTGRES_URL names no Postgres server")
    psycopg = pytest.importorskip("psycopg")
    pytest.importorskip("langgraph.checkpoint.postgres")
    with psycopg.connect(URL, autocommit=True) as server:
        for table in ("amc_leases", "checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations"):
            server.execute(f"DROP TABLE IF EXISTS {table}")
    with import_module("langgraph.checkpoint.postgres").PostgresSaver.from_conn_string(URL) as saver:
        saver.setup()
    return URL


@pytest.mark.parametrize("starts", [3, pytest.param(100, marks=pytest.mark.thorough)])
def test_three_processes_pay_once(url, tmp_path, starts):
    check_paid_once(call_together(url, tmp_path, starts), starts)


@pytest.mark.parametrize("pooled", [False, True])
async def test_of_many_tasks_one_runs_the_thread(url, tmp_path, pooled):
    aio = import_module("langgraph.checkpoint.postgres.aio")
    ledger = Ledger(tmp_path / "ledger.db")
    if pooled:
        options = {"autocommit": True, "prepare_threshold": 0}
        opened = import_module("psycopg_pool").AsyncConnectionPool(url, open=False, kwargs=options)
    else:
        opened = aio.AsyncPostgresSaver.from_conn_string(url)
    async with opened as connection:
        graph, config = payer(ledger, aio.AsyncPostgresSaver(connection) if pooled else connection, "a")
        ended = await asyncio.gather(*(graph.ainvoke(start(), config) for _ in range(3)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in ended) == ["ThreadHeld"] * 2 + ["dict"]
    assert len(ledger.rows("refund")) == 1
