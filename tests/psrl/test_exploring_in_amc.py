"""PSRL and IDS in an agent that runs as a population: the posterior learns what the winner saw, once."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore

from amc_agents import AtSteps, Never, amc
from amc_agents.errors import AgentContractError, QuorumLost
from amc_agents.psrl.episodes import OPEN
from amc_agents.psrl.posterior.memory import InMemoryPosterior
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.runtime.store_operations import batch
from tests.arguments import arguments
from tests.psrl import test_ids_middleware as ids
from tests.psrl.exploring_agents import GIVEN, NAMESPACE, PRIOR, an_agent, counts, machine


class PrefersLast:
    """A critic that likes the last slot, so that its particle is forked into all others."""

    async def values(self, trajectories):
        return 100.0 * (np.arange(len(trajectories)) == len(trajectories) - 1)


def population(agent, **settings):
    return amc(
        agent,
        PrefersLast(),
        **arguments(n_particles=4, resample=AtSteps(1), beta=1.0, tools={"pull": "read"}, seed=2, **settings),
    )


async def check(store, play, **options):
    """Two runs of a population leave what two runs of an agent alone leave."""
    agent = an_agent(store, **options)
    n_steps = {"trajectory": 1, "step": 2}[options.get("update", "trajectory")]
    for n_runs in (1, 2):
        run = await play(population(agent))
        assert any(point.ancestors is not None for point in run.history)
        versions = await StorePosterior(store, NAMESPACE).history()
        assert [version.number for version in versions] == list(range(1, 2 + n_runs * n_steps))
        assert counts(versions[-1].text).sum() == 2 * n_runs, "the two pulls of each run's winner"
        assert len(await StorePosterior(store, NAMESPACE).recorded()) == n_runs * n_steps
        assert await batch(store, SearchOp((*NAMESPACE, OPEN))) == [[]], "no episode is left open"


@pytest.fixture(params=["sync", "async"])
def play(request):
    async def run(graph):
        return await (asyncio.to_thread(graph.run, GIVEN) if request.param == "sync" else graph.arun(GIVEN))

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("update", ["trajectory", "step"])
async def test_evidence_is_counted_once(play, update):
    await check(InMemoryStore(), play, update=update)


async def test_evidence_is_counted_once_in_a_database(play, tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "memory.db")) as store:
        await check(store, play, update="step")


@pytest.mark.thorough  # quick: test_evidence_is_counted_once_in_a_database
async def test_evidence_is_counted_once_in_an_async_database(tmp_path):
    async def play(graph):
        return await graph.arun(GIVEN)

    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "memory.db")) as store:
        await check(store, play, update="step")


async def test_information_directed_counts_once_too(play):
    store = InMemoryStore()
    run = await play(population(ids.an_agent(store, namespace=NAMESPACE)))
    seen = [step.observation for step in run.best.steps]
    memory = StorePosterior(store, NAMESPACE)
    assert len(await memory.recorded()) == len(await memory.history()) - 1 == 1
    assert seen[0] in (await memory.recorded())[0].observation


async def test_a_version_that_others_wrote_during_the_run_is_kept_and_all_evidence_is_learnt(play):
    store = InMemoryStore()
    agent = an_agent(store)
    await agent.ainvoke(GIVEN)

    class Interferes(PrefersLast):
        async def values(self, trajectories):
            await agent.ainvoke(GIVEN)
            return await super().values(trajectories)

    run = await play(amc(agent, Interferes(), n_particles=3, resample=Never(), tools={"pull": "read"}, seed=0))
    assert run.notes == ()
    memory = StorePosterior(store, NAMESPACE)
    assert counts((await memory.head()).text).sum() == 4, "two pulls before the run, and two beside it or in it"
    assert len(await memory.versions()) == 4
    assert len(await memory.pending()) == 1
    await agent.ainvoke(GIVEN)
    assert counts((await memory.head()).text).sum() == 8, "all of them, and two more"


async def test_a_run_that_fails_learns_nothing(play):
    store = InMemoryStore()

    def fail(number):
        raise OSError("the machine is broken")

    agent = an_agent(store, pull=machine(fail)[0])
    with pytest.raises(QuorumLost):
        await play(population(agent))
    assert store.search(()) == []


async def test_a_posterior_outside_the_store_is_refused(play):
    agent = an_agent(None, memory=InMemoryPosterior(str(PRIOR)))
    with pytest.raises(AgentContractError, match="memory="):
        await play(population(agent))
