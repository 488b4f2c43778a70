"""Model calls in threads that a tool starts are counted and bounded like all others of its particle."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents import Budget, Never, amc, effect
from amc_agents.models.seeding import particle_rng
from amc_agents.runtime.door import in_particle
from amc_agents.testing import ScriptedChatModel
from tests.population.commits.ledger import call, results, start
from tests.variants import variants

N_INNER = 5
POOL = ThreadPoolExecutor(1)
POOL.submit(int).result()  # Its thread starts outside of all particles.


def in_threads(ask):
    def work():
        with suppress(asyncio.CancelledError):  # Of a particle whose budget has ended; pytest would report the thread.
            ask()

    threads = [Thread(target=work) for _ in range(N_INNER)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_a_pool(ask):
    with ThreadPoolExecutor(3) as pool:
        for answer in [pool.submit(ask) for _ in range(N_INNER)]:
            answer.result()


def in_a_pool_of_the_program(ask):
    for answer in [POOL.submit(ask) for _ in range(N_INNER)]:
        answer.result()


def in_a_loop_of_its_own(ask):
    async def all_of_them():
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(None, ask) for _ in range(N_INNER)))

    thread = Thread(target=asyncio.run, args=(all_of_them(),))
    thread.start()
    thread.join()


@pytest.fixture
def asked():
    """The requests that really reached the inner model."""
    return []


def agent(asked, how):
    inner = ScriptedChatModel(respond=lambda messages: asked.append(particle_rng() is not None) or "open")

    @tool
    @effect("read")
    def look(item: int) -> str:
        """Ask the inner model in threads."""
        how(lambda: inner.invoke("Is it open?"))
        return "open"

    def respond(messages):
        return "done" if results(messages) else AIMessage("", tool_calls=[call("look", "l", item=1)])

    return create_agent(ScriptedChatModel(respond=respond), [look])


@variants("how", [in_threads, in_a_pool, in_a_pool_of_the_program, in_a_loop_of_its_own])
def test_model_calls_in_threads_of_a_tool_are_counted(asked, how):
    run = amc(agent(asked, how), "uniform", n_particles=3, resample=Never()).run(start())
    assert len(asked) == 3 * N_INNER
    assert all(asked)  # They draw from their particle's random stream.
    assert run.usage["policy"].calls == 3 * (2 + N_INNER)


@pytest.mark.parametrize("how", [in_threads, in_a_pool])
def test_model_calls_in_threads_of_a_tool_are_within_the_budget(asked, how):
    graph = amc(agent(asked, how), "uniform", n_particles=3, resample=Never(), budget=Budget(calls=12))
    run = graph.run(start())
    assert run.usage["policy"].calls <= 12
    assert len(asked) <= 12


def test_threads_outside_of_particles_are_left_alone():
    seen = []
    thread = Thread(target=lambda: seen.append(in_particle()))
    thread.start()
    thread.join()
    assert seen == [False]
