"""A posterior in Postgres. AMC_TEST_POSTGRES_URL names a server with a database for tests; skipped without it."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from contextlib import AsyncExitStack, ExitStack

import pytest

from amc_agents.errors import PosteriorError
from amc_agents.psrl.posterior.memory import Evidence, Version
from amc_agents.psrl.posterior.store import StorePosterior, posteriors_in
from amc_agents.psrl.posterior.updates import apply_pending, edit, update_posterior
from tests.psrl.posterior.posterior_writers import NAMESPACE

pytestmark = pytest.mark.service
URL = os.environ.get("AMC_TEST_POSTGRES_URL", "")
PRIOR = "Lever A: 0 of 0."


@pytest.fixture
def url():
    """URL of the server, with an empty store."""
    if not URL:
        pytest.skip("AMC_TEST_POSTGRES_URL names no Postgres server")
    postgres = pytest.importorskip("langgraph.store.postgres")
    with postgres.PostgresStore.from_conn_string(URL) as store:
        store.setup()
        store.conn.execute("DELETE FROM store")
    return URL


@pytest.fixture(params=["sync", "async", "async pool", "async pipeline", "sync pool", "sync pipeline"])
async def store(request, url):
    postgres = pytest.importorskip("langgraph.store.postgres")
    kind, *mode = request.param.split()
    options = {"pool": {"pool_config": {"min_size": 1, "max_size": 4}}, "pipeline": {"pipeline": True}}
    arguments = options[mode[0]] if mode else {}
    async with AsyncExitStack() as opened:
        if kind == "async":
            yield await opened.enter_async_context(postgres.AsyncPostgresStore.from_conn_string(url, **arguments))
        else:
            with ExitStack() as sync:
                yield sync.enter_context(postgres.PostgresStore.from_conn_string(url, **arguments))


async def append_line(text, evidence):
    await asyncio.sleep(0.001)
    return f"{text}\n{evidence.observation}"


def seen(version):
    return version.text.removeprefix(PRIOR).split()


async def test_versions_edits_and_pending_evidence_are_stored(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    opened = await memory.head()
    await update_posterior(memory, append_line, Evidence("1", "won:A", "e1"))
    await edit(memory, f"{PRIOR}\nowner", parent=opened.id)
    again = StorePosterior(store, NAMESPACE)
    assert [evidence.observation for evidence in await again.pending()] == ["won:A"]
    assert seen(await apply_pending(again, append_line)) == ["owner", "won:A"]
    assert await memory.history() == await again.history()
    assert await posteriors_in(store) == ["worlds.lever"]
    with pytest.raises(PosteriorError, match=r"Posteriors in this store: worlds\.lever$"):
        await StorePosterior(store, "elsewhere").head()


async def test_two_simultaneous_edits_are_both_kept(store):
    memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
    first = await memory.head()
    edits = [memory.append(Version(text, "edit", first.id, 2)) for text in "ab"]
    added = await asyncio.gather(*edits)
    assert any(added)
    assert len(await memory.versions()) == 1 + sum(added)
    assert len(await memory.history()) == 2


async def test_twenty_tasks_that_race_on_one_store_lose_nothing(store):
    async def write(i):
        memory = StorePosterior(store, NAMESPACE, prior=PRIOR)
        await update_posterior(memory, append_line, Evidence(f"{i}", f"x{i}"))

    await asyncio.gather(*[write(i) for i in range(20)])
    assert sorted(seen(await StorePosterior(store, NAMESPACE).head())) == sorted(f"x{i}" for i in range(20))


async def test_cancellations_at_random_moments_lose_nothing(store):
    rng, memory = random.Random(0), StorePosterior(store, NAMESPACE, prior=PRIOR)
    await memory.head()
    for i in range(25):
        task = asyncio.create_task(update_posterior(memory, append_line, Evidence(f"{i}", f"x{i}")))
        await asyncio.sleep(rng.uniform(0, 0.015))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    recorded = {evidence.observation for evidence in await memory.recorded()}
    assert sorted(seen(await apply_pending(memory, append_line))) == sorted(recorded)


def test_twenty_processes_lose_nothing(url, repository):
    postgres = pytest.importorskip("langgraph.store.postgres")
    with postgres.PostgresStore.from_conn_string(url) as store:
        asyncio.run(StorePosterior(store, NAMESPACE, prior=PRIOR).head())
        writers = subprocess.run(
            [sys.executable, "-m", "tests.psrl.posterior.posterior_writers", url, "20"],
            cwd=repository, capture_output=True, text=True, timeout=240,
        )  # fmt: skip
        assert writers.returncode == 0, writers.stderr
        history = asyncio.run(StorePosterior(store, NAMESPACE).history())
        assert sorted(seen(history[-1])) == sorted(f"x{i}" for i in range(20))
        assert len(history) == 21
