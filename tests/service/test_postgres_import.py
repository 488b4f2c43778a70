"""Logs in a PostgreSQL checkpointer. AMC_TEST_POSTGRES_URL names a server whose role may create databases."""

from __future__ import annotations

import os
from importlib import import_module

import pytest

from amc_agents.errors import CheckpointError
from amc_agents.operations.importing import import_logs, read
from tests.operations.importing.shop import seen_by_a_run, shop_agent, texts

pytestmark = pytest.mark.service
URL = os.environ.get("AMC_TEST_POSTGRES_URL", "")
NAME = "amc_test_threads"


@pytest.fixture
def address():
    if not URL:
        pytest.skip("AMC_TEST_POSTGRES_URL names no Postgres server")
    psycopg = pytest.importorskip("psycopg")
    pytest.importorskip("langgraph.checkpoint.postgres")
    with psycopg.connect(URL, autocommit=True) as server:
        server.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
        server.execute(f"CREATE DATABASE {NAME}")
        info = psycopg.conninfo.conninfo_to_dict(URL)
        host, port, user = (info.get(key, default) for key, default in (("host", ""), ("port", 5432), ("user", "")))
        password = f":{info['password']}" if "password" in info else ""
        yield f"postgresql://{user}{password}@/{NAME}?host={host}&port={port}"
        server.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


def test_every_call_reads_as_the_run_that_amc_would_have_seen(address, tmp_path):
    given = {}
    with import_module("langgraph.checkpoint.postgres").PostgresSaver.from_conn_string(address) as saver:
        saver.setup()
        agent = shop_agent(checkpointer=saver)
        for thread in ("a", "b"):
            config = {"configurable": {"thread_id": thread}}
            for turn, question in enumerate(("desk lamp", "chair")):
                before = agent.get_state(config).values.get("messages", [])
                given[thread, turn] = [*before, ("user", question)]
                agent.invoke({"messages": [("user", question)]}, config)
    runs = {(run.origin.thread, run.turn): texts(run.trajectory) for run in read(address)}
    assert runs == {place: texts(seen_by_a_run(messages)) for place, messages in given.items()}
    assert import_logs(address, tmp_path / "data").trajectories == 4
    again = import_logs(address, tmp_path / "data")
    assert (again.trajectories, again.imported_before) == (0, 2)


def test_a_database_without_checkpoints_is_named(address):
    with pytest.raises(CheckpointError, match="PostgresSaver was set up"):
        list(read(address))
