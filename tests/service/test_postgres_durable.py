"""Durable points in PostgreSQL. AMC_TEST_POSTGRES_URL names a server with a database for tests; skipped without it."""

from __future__ import annotations

import os
from uuid import uuid4

import pytest

from amc_agents.population.features.durable.points import points_thread
from amc_agents.smc import EveryStep
from tests.population.durable.scenario import LENGTH, N, Scenario, facts
from tests.population.worlds import start

pytestmark = pytest.mark.service
URL = os.environ.get("AMC_TEST_POSTGRES_URL", "")


@pytest.fixture
def config():
    """A new thread."""
    return {"configurable": {"thread_id": uuid4().hex}}


@pytest.fixture
def saver():
    if not URL:
        pytest.skip("AMC_TEST_POSTGRES_URL names no Postgres server")
    postgres = pytest.importorskip("langgraph.checkpoint.postgres")
    with postgres.PostgresSaver.from_conn_string(URL) as saver:
        saver.setup()
        yield saver


@pytest.fixture
async def async_saver(saver):
    aio = pytest.importorskip("langgraph.checkpoint.postgres.aio")
    async with aio.AsyncPostgresSaver.from_conn_string(URL) as saver:
        yield saver


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_run_that_broke_off_goes_on(saver, config, call):
    plain = Scenario(resample=EveryStep()).graph.run(start())
    broken = Scenario(saver, resample=EveryStep())
    broken.fails_at_critic_call = call
    with pytest.raises(Exception, match="the machine dies"):
        broken.graph.run(start(), config)
    assert facts(broken.graph.run(None, config)) == facts(plain)
    assert broken.model_calls == N * (LENGTH + 1)


async def test_an_async_run_that_broke_off_goes_on(async_saver, config):
    plain = await Scenario(resample=EveryStep()).graph.arun(start())
    broken = Scenario(async_saver, resample=EveryStep())
    broken.fails_at_critic_call = 3
    with pytest.raises(Exception, match="the machine dies"):
        await broken.graph.arun(start(), config)
    assert facts(await broken.graph.arun(None, config)) == facts(plain)


def test_replays_and_collection(saver, config):
    scenario = Scenario(saver, resample=EveryStep())
    first = facts(scenario.graph.run(start(), config))
    points = scenario.graph.points(config)
    assert [point.step for point in points] == [6, 5, 4, 3, 2, 1]
    assert facts(scenario.graph.run(None, points[3].config)) == first
    seeded = {"configurable": {**points[3].config["configurable"], "amc_seed": 8}}
    assert facts(scenario.graph.run(None, seeded))["texts"] != first["texts"]
    thread = {"configurable": {"thread_id": points_thread(config["configurable"]["thread_id"])}}
    assert len(list(saver.list(thread))) == 6 + 3 + 3
    scenario.graph.run(start(), config)
    assert len(list(saver.list(thread))) == 6
