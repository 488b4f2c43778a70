"""Against a TextCraft server in a process of its own."""

import asyncio
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from amc_agents_agentgym import DIALECTS, AgentGymError, AgentGymTask, AgentGymTimeout, agentgym_world
from textcraft_server import SLOW

from amc_agents import amc, text_agent
from amc_agents.envs.crafting import CraftingWorld, generate_tasks
from amc_agents.envs.crafting.tasks import next_move
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.smc import AtSteps
from amc_agents.testing import check_environment
from amc_agents.types import Task


@pytest.fixture(scope="module")
def url():
    script = Path(__file__).parent / "textcraft_server.py"
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    with process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.terminate()


@pytest.fixture
def textcraft(url):
    return agentgym_world("textcraft", url)


def open_environments(url):
    with urlopen(url) as answer:
        return json.load(answer)


async def task_and_solution(textcraft):
    task = await asyncio.to_thread(lambda: next(iter(textcraft.tasks(1, "test", 3))))
    original = list(generate_tasks(20, "test", optimal_steps=(3, 6)))[3]
    world, actions = CraftingWorld(), []
    answer = await world.reset(original)
    while not answer.done:
        actions.append(next_move(original.payload.book, original.payload.goal, world.inventory).action)
        answer = await world.step(actions[-1])
    return task, actions


async def test_the_contract_of_an_environment_is_kept(textcraft, url):
    task, solution = await task_and_solution(textcraft)
    await check_environment(textcraft.make, task, solution)


async def test_a_solution_pays_one_and_closing_leaves_no_environment(textcraft, url):
    before = open_environments(url)
    task, solution = await task_and_solution(textcraft)
    world = textcraft.make()
    await world.reset(task)
    twin = await world.fork(1)
    answers = [await world.step(action) for action in solution]
    assert [answer.reward for answer in answers] == [0.0] * (len(solution) - 1) + [1.0]
    assert answers[-1].terminated
    assert len(open_environments(url)) == len(before) + 2
    await twin.close()
    await world.close()
    await world.close()
    assert open_environments(url) == before


def test_amc_plays_it_with_a_critic_and_closes_every_environment(url):
    before = open_environments(url)
    # The shipped policy and its critic know the crafting world's own instruction, without further rules.
    textcraft = agentgym_world(replace(DIALECTS["textcraft"], rules=""), url)
    task = next(iter(textcraft.tasks(1, "test", 3)))
    search = amc(
        text_agent(EmbeddedChatModel(model="crafting", temperature=0.6)), "embedded:crafting",
        environment=lambda _: (textcraft.make(), task), n_particles=8, horizon=10, resample=AtSteps(2, 4),
        beta=0.1, seed=1,
    )  # fmt: skip
    run = search.run({"messages": [("user", task.instruction)]})
    assert run.best.return_ == 1.0
    assert any(point.ancestors is not None for point in run.history)
    run.close()  # The world of the best particle stays open until then.
    assert open_environments(url) == before


async def test_an_error_inside_of_a_200_is_raised(textcraft):
    world = textcraft.make()
    with pytest.raises(AgentGymError, match=r"/reset: the server reported an error: list index out of range"):
        await world.reset(Task("t", "x", AgentGymTask(2000)))
    await world.close()


async def test_a_server_that_takes_too_long_is_a_timeout(url):
    world = agentgym_world("textcraft", url, timeout=0.2).make()
    await world.reset(Task("t", "x", AgentGymTask(1)))
    with pytest.raises(AgentGymTimeout, match=r"/step: no answer within 0\.2 s"):
        await world.step(SLOW)
    await world.close()


async def test_a_server_that_is_not_there_is_named():
    world = agentgym_world("textcraft", "http://127.0.0.1:9").make()
    with pytest.raises(AgentGymError, match=r"127\.0\.0\.1:9/create: no connection \(ConnectError"):
        await world.reset(Task("t", "x", AgentGymTask(1)))
    await world.close()
