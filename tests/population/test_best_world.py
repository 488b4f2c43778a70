"""The winner's world, which `run` and `arun` hand to their caller."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents import AtSteps, amc, current_environment, effect
from amc_agents.envs import DirectoryFork
from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel
from amc_agents.types import TimeStep
from tests.arguments import arguments
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, number_agent, say_nothing, start, sum_world

READ = {"say_nothing": "read"}


@tool
@effect("world")
def append(word: str) -> str:
    """Append a word to notes.txt."""
    with (current_environment(DirectoryFork).path / "notes.txt").open("a") as file:
        file.write(f"{word}\n")
    return "written"


def respond(messages):
    if sum(isinstance(message, ToolMessage) for message in messages) == 4:
        return "done"
    word = "ab"[int(particle_rng().integers(2))]
    return AIMessage("", tool_calls=[{"name": "append", "args": {"word": word}, "id": f"{len(messages)}"}])


def prefer_a(trajectories):
    return [sum('"a"' in step.action for step in trajectory.steps) for trajectory in trajectories]


@pytest.fixture
def original(tmp_path):
    folder = tmp_path / "original"
    folder.mkdir()
    (folder / "notes.txt").write_text("start\n")
    return folder


@pytest.fixture
def writer(original, workspaces):
    return amc(
        create_agent(ScriptedChatModel(respond=respond), [append]),
        prefer_a,
        environment=lambda state: DirectoryFork(original, workspace=workspaces),
        n_particles=8,
        resample=AtSteps(2),
        beta=0.5,
        seed=0,
    )


def words(run):
    return [step.action.split('"word": "')[1][0] for step in run.best.steps if "word" in step.action]


def sums(**settings):
    chosen = {"environment": sum_world, "n_particles": 4, "resample": AtSteps(1), "seed": 0, **settings}
    return amc(number_agent(), ReturnSoFar(), **arguments(**chosen))


def until_closed(kind=SumWorld):
    for _ in range(200):
        gc.collect()
        if kind.open == 0:
            return
        time.sleep(0.01)
    raise AssertionError(f"{kind.open} worlds are open")


def test_the_winners_world_is_the_callers_until_the_run_is_closed(writer, original, workspaces):
    with writer.run(start()) as run:
        assert isinstance(run.best_world, DirectoryFork)
        expected = "".join(f"{word}\n" for word in words(run))
        assert (run.best_world.path / "notes.txt").read_text() == f"start\n{expected}"
        assert f"+{words(run)[0]}\n" in run.best_world.diff()
        assert (original / "notes.txt").read_text() == "start\n"
        assert [change.path for change in run.best_world.apply()] == ["notes.txt"]
    assert (original / "notes.txt").read_text() == f"start\n{expected}"
    assert list(workspaces.iterdir()) == []


@pytest.mark.thorough  # quick: test_the_winners_world_is_the_callers_until_the_run_is_closed
async def test_the_same_async(writer, original, workspaces):
    async with await writer.arun(start()) as run:
        run.best_world.apply()
    assert (original / "notes.txt").read_text().split() == ["start", *words(run)]
    assert list(workspaces.iterdir()) == []


@pytest.mark.thorough
def test_a_world_that_only_the_caller_holds_stays_open(writer, original):
    world = writer.run(start()).best_world
    gc.collect()
    time.sleep(0.05)
    assert "start" in (world.path / "notes.txt").read_text()
    assert [change.path for change in writer.run(start()).best_world.apply()] == ["notes.txt"]


@pytest.mark.thorough
def test_the_world_of_a_dropped_run_is_closed(writer, workspaces):
    run = writer.run(start())
    assert len(list(workspaces.iterdir())) == 1
    del run
    for _ in range(200):
        gc.collect()
        if not list(workspaces.iterdir()):
            return
        time.sleep(0.01)
    raise AssertionError("the world is still open")


def test_rewards_are_recorded_around_the_users_own_object():
    run = sums().run(start())
    assert type(run.best_world) is SumWorld
    assert sum(run.best_world.taken) == run.best.return_
    assert SumWorld.open == 1
    run.close()
    run.close()
    assert SumWorld.open == 0


class Jackpot(SumWorld):
    """The action 9 ends the episode and pays 50."""

    async def step(self, action):
        answer = await super().step(action)
        return TimeStep.termination(answer.observation, 50.0) if action == "9" else answer


@pytest.mark.thorough
def test_an_archived_winner_has_its_world():
    settings = {"n_particles": 6, "finished": "keep", "resample": AtSteps(1, 2, 3), "beta": 0.5, "select": "return"}
    archived = Jackpot.open = 0
    for seed in range(10):
        graph = amc(
            number_agent(), Optimist(), **arguments(environment=lambda state: (Jackpot(), TASK), **settings, seed=seed)
        )
        with graph.run(start()) as run:
            if run.best_index == -1:
                archived += 1
                assert run.best_world.taken[-1] == 9.0
            assert not run.best_world.closed
    assert archived
    assert Jackpot.open == 0


class Optimist:
    """A critic that expects much of every particle that has not ended."""

    async def values(self, trajectories):
        return np.array([1000.0 for _ in trajectories])


def test_other_calls_close_all_worlds():
    sums().invoke(start())
    asyncio.run(sums().ainvoke(start()))
    list(sums().stream(start(), stream_mode="custom"))
    assert SumWorld.open == 0


def test_a_streamed_run_has_no_world():
    events = [event for event in sums().stream(start(), stream_mode="custom") if event.get("type") == "amc.run"]
    assert events[0]["run"].best_world is None
    events[0]["run"].close()


def test_a_run_without_a_world_has_none():
    agent = create_agent(ScriptedChatModel(respond=lambda messages: "done"), [say_nothing])
    run = amc(agent, lambda trajectories: [0.0] * len(trajectories), n_particles=2, seed=0, tools=READ).run(start())
    assert run.best_world is None
    run.close()


def test_a_run_stays_a_value():
    with sums().run(start()) as run:
        assert "world" not in run.as_plain()
        assert "world" not in repr(run)
        for other in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
            assert other.best_world is None
            assert other.best == run.best
        assert not run.best_world.closed


def test_if_the_run_fails_after_its_end_the_world_is_closed(monkeypatch):
    async def fail(*_):
        raise OSError("the stream broke")

    monkeypatch.setattr("amc_agents.population.nodes._stream", fail)
    with pytest.raises(OSError, match="the stream broke"):
        sums().run(start())
    with pytest.raises(OSError, match="the stream broke"):
        asyncio.run(sums().arun(start()))
    assert SumWorld.open == 0


async def test_closing_on_the_runs_own_loop_is_refused_and_done_by_aclose():
    run = await sums().arun(start())
    with pytest.raises(ConfigurationError, match=r"await run.aclose\(\)"):
        run.close()
    assert SumWorld.open == 1
    await run.aclose()
    await run.aclose()
    run.close()
    assert SumWorld.open == 0


async def test_a_world_is_closed_on_the_loop_of_its_run():
    loops = []

    class Bound(SumWorld):
        async def reset(self, task):
            loops.append(asyncio.get_running_loop())
            return await super().reset(task)

        async def close(self):
            loops.append(asyncio.get_running_loop())
            await super().close()

    def make(state):
        return Bound(), sum_world(state)[1]

    graph = sums(environment=make, n_particles=1)
    run = await asyncio.to_thread(graph.run, start())
    await run.aclose()
    run = await graph.arun(start())
    await asyncio.to_thread(run.close)
    assert loops[0] is loops[1] is not loops[2]
    assert loops[2] is loops[3] is asyncio.get_running_loop()


def test_after_the_loop_has_ended_the_run_can_still_be_closed():
    run = asyncio.run(sums().arun(start()))
    run.close()
    assert SumWorld.open == 0


@pytest.mark.thorough  # quick: test_the_winners_world_is_the_callers_until_...
def test_a_world_whose_attributes_cannot_be_set_is_open_as_long_as_its_run():
    class Slots:
        __slots__ = ("taken",)
        open = 0

        def __init__(self):
            self.taken = []
            type(self).open += 1

        async def fork(self, seed):
            return Slots()

        async def close(self):
            type(self).open -= 1

    agent = create_agent(ScriptedChatModel(respond=lambda messages: "done"), [say_nothing])
    run = amc(
        agent,
        lambda trajectories: [0.0] * len(trajectories),
        environment=lambda state: Slots(),
        n_particles=2,
        seed=0,
        tools=READ,
    ).run(start())
    assert (type(run.best_world), Slots.open) == (Slots, 1)
    del run
    until_closed(Slots)


@pytest.mark.thorough
def test_at_the_end_of_the_process_worlds_are_closed(tmp_path, repository):
    script = """
        from tests.population.test_best_world import *

        class Told(SumWorld):
            async def close(self):
                print("closed", flush=True)

        def make(state):
            return Told(), sum_world(state)[1]

        run = sums(environment=make, n_particles=1).run(start())
        print("end", flush=True)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=repository, capture_output=True,
                          text=True, timeout=120, check=True)  # fmt: skip
    assert done.stdout.split() == ["end", "closed"]
