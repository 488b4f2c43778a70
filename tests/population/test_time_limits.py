"""`step_timeout` and `run_timeout`: no single hanging part blocks a run."""

import asyncio
import gc
import threading

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents import AmcSettings
from amc_agents.config import Config
from amc_agents.errors import ConfigurationError, CriticError, QuorumLost, RunTimedOut, TimeLimitExceeded
from amc_agents.population import particle_runner
from amc_agents.population.settings import Settings
from amc_agents.population.wrap import amc
from amc_agents.runtime import world as world_module
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, number_agent, start, sum_world
from tests.variants import variants

ENOUGH_S = 1.0
"""Enough for every step that does not hang, even on a busy machine."""


def run_of(graph, asynchronous):
    return asyncio.run(graph.arun(start())) if asynchronous else graph.run(start())


def hanging_in(step, n_hanging=1):
    """Worlds of which the first `n_hanging` hang in their `step`-th step, counted from 1."""
    left = [n_hanging]

    class Hangs(SumWorld):
        async def step(self, action):
            if len(self.taken) == step - 1 and left[0] > 0:
                left[0] -= 1
                await asyncio.Event().wait()
            return await super().step(action)

    return lambda state: (Hangs(), TASK)


def caller_of(name):
    """A policy that calls a tool once, then answers."""

    def respond(messages):
        if len(messages) > 1:
            return "done"
        return AIMessage("", tool_calls=[{"name": name, "args": {}, "id": "1"}])

    return ScriptedChatModel(respond=respond)


@tool
def do_nothing() -> str:
    """Do nothing."""
    return "nothing"


# --- one step -----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_hanging_particle_fails_and_the_run_continues(asynchronous):
    graph = amc(number_agent(), ReturnSoFar(), environment=hanging_in(2), n_particles=4, resample=AtSteps(3),
                step_timeout=ENOUGH_S, seed=1)  # fmt: skip
    run = run_of(graph, asynchronous)
    before = run.history[0]
    assert np.isneginf(before.log_weights).sum() == 1
    assert run.best.done
    cause = "TimeLimitExceeded: step 2 of a particle took longer than step_timeout=1 s"
    assert any(note.startswith("1 of 4 particles failed") and cause in note for note in run.notes)
    run.close()
    assert SumWorld.open == 0


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_hanging_sync_tool_is_abandoned_in_its_thread(asynchronous):
    release, calls = threading.Event(), []

    @tool
    def slow() -> str:
        """Wait."""
        calls.append(1)
        if len(calls) == 1:
            release.wait()
        return "waited"

    agent = create_agent(caller_of("slow"), [slow])
    graph = amc(agent, "uniform", stateless_tools=True, n_particles=3, resample=Never(), step_timeout=ENOUGH_S)

    async def arun():
        run = await graph.arun(start())
        release.set()  # Otherwise `asyncio.run` would wait for the thread.
        return run

    try:
        run = asyncio.run(arun()) if asynchronous else graph.run(start())
    finally:
        release.set()
    assert sum(run.population.failed) == 1


@pytest.mark.thorough  # waits a second; quick: test_step_timeout_includes_the_reward_function
def test_a_step_that_ignores_its_cancellation_is_abandoned(monkeypatch):
    monkeypatch.setattr(particle_runner, "CANCELLING_LIMIT_S", 0.01)
    stubborn = []

    class Stubborn(SumWorld):
        async def step(self, action):
            if not stubborn:
                stubborn.append(asyncio.Event())
                while not stubborn[0].is_set():
                    try:
                        await stubborn[0].wait()
                    except asyncio.CancelledError:
                        continue
            return await super().step(action)

    async def arun():
        graph = amc(number_agent(), environment=lambda state: (Stubborn(), TASK), n_particles=3, resample=Never(),
                    step_timeout=ENOUGH_S)  # fmt: skip
        try:
            return await graph.arun(start())
        finally:
            stubborn[0].set()

    run = asyncio.run(arun())
    assert sum(run.population.failed) == 1
    assert run.best.done


@variants("asynchronous", [True, False])
@variants("kind", ["async", "sync"])
def test_step_timeout_includes_the_reward_function(kind, asynchronous):
    release = threading.Event()

    async def hang(state):
        await asyncio.Event().wait()

    def block(state):
        release.wait()

    agent = create_agent(caller_of("do_nothing"), [do_nothing])
    graph = amc(agent, "uniform", stateless_tools=True, reward=hang if kind == "async" else block, n_particles=2,
                step_timeout=0.2)  # fmt: skip

    async def arun():
        try:
            return await graph.arun(start())
        finally:
            release.set()

    with pytest.raises(QuorumLost, match=r"took longer than step_timeout=0\.2 s") as caught:
        asyncio.run(arun()) if asynchronous else graph.run(start())
    release.set()
    assert all(isinstance(cause, TimeLimitExceeded) for cause in caught.value.causes)


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_hanging_critic_is_a_critic_error(asynchronous):
    class Hangs:
        async def values(self, trajectories):
            await asyncio.Event().wait()

    settings = {"environment": sum_world, "n_particles": 3, "resample": AtSteps(1), "step_timeout": ENOUGH_S}
    with pytest.raises(CriticError, match=r"the critic took longer than step_timeout=1 s"):
        run_of(amc(number_agent(), Hangs(), **arguments(**settings)), asynchronous)
    assert SumWorld.open == 0
    if asynchronous:
        run = run_of(amc(number_agent(), Hangs(), **arguments(on_critic_error="uniform", **settings)), asynchronous)
        assert any("step_timeout" in note for note in run.notes)


@pytest.mark.thorough  # quick: the frozen record "deadline"
def test_limits_that_are_not_reached_change_nothing():
    settings = {"environment": sum_world, "n_particles": 6, "resample": EveryStep(), "beta": 1.0, "seed": 3}
    free = amc(number_agent(), ReturnSoFar(), **arguments(**settings)).run(start())
    limited = amc(number_agent(), ReturnSoFar(), **arguments(step_timeout=60, run_timeout=600, **settings)).run(start())
    assert free.log_evidence == limited.log_evidence
    assert [[step.action for step in trajectory.steps] for trajectory in free.population.trajectories] == [
        [step.action for step in trajectory.steps] for trajectory in limited.population.trajectories
    ]
    assert (limited.config["step_timeout"], limited.config["run_timeout"]) == (60, 600)


# --- the whole run ------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("select", "asynchronous"), [("return", False), *[(s, True) for s in ("return", "value", "weight", "sample")]]
)
def test_run_timeout_returns_the_best_finished_trajectory(select, asynchronous):
    graph = amc(number_agent(), ReturnSoFar(), environment=hanging_in(3, n_hanging=3), n_particles=6,
                resample=AtSteps(2), settings=AmcSettings(run_timeout=ENOUGH_S), select=select, seed=2)  # fmt: skip
    run = run_of(graph, asynchronous)
    done = [trajectory for trajectory in run.population.trajectories if trajectory.done]
    assert len(done) == 3
    assert run.best.done
    assert run.best in done
    if select == "return":
        assert run.best.return_ == max(trajectory.return_ for trajectory in done)
    assert np.isnan(run.log_evidence)
    assert any(note.startswith("run_timeout=1 s passed: the answer is the best of 3 finished") for note in run.notes)
    run.close()
    assert SumWorld.open == 0


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
def test_run_timeout_without_finished_particles_raises_with_the_trajectories(asynchronous):
    graph = amc(number_agent(), ReturnSoFar(), environment=hanging_in(3, n_hanging=4), n_particles=4,
                resample=Never(), settings=AmcSettings(run_timeout=ENOUGH_S))  # fmt: skip
    with pytest.raises(RunTimedOut, match=r"run_timeout=1 s passed and none of 4 particles had finished") as caught:
        run_of(graph, asynchronous)
    assert [len(trajectory.steps) for trajectory in caught.value.trajectories] == [2] * 4
    assert isinstance(caught.value, TimeoutError)
    assert SumWorld.open == 0


@pytest.mark.thorough
@pytest.mark.parametrize("hanging", ["environment", "reset", "fork", "later fork", "critic"])
def test_run_timeout_limits_every_part_of_a_run(hanging, monkeypatch):
    monkeypatch.setattr(world_module, "CLOSING_LIMIT_S", 0.01)

    class Hangs(SumWorld):
        async def reset(self, task):
            return await (asyncio.Event().wait() if hanging == "reset" else super().reset(task))

        async def fork(self, seed):
            if hanging == "fork" or (hanging == "later fork" and self.taken):
                await asyncio.Event().wait()
            return await super().fork(seed)

    class HangingCritic(ReturnSoFar):
        async def values(self, trajectories):
            return await (asyncio.Event().wait() if hanging == "critic" else super().values(trajectories))

    async def environment(state):
        if hanging == "environment":
            await asyncio.Event().wait()
        return Hangs(), TASK

    ready = hanging in ("later fork", "critic")
    graph = amc(number_agent(), HangingCritic(9.0), environment=environment, n_particles=4, resample=AtSteps(1),
                settings=AmcSettings(run_timeout=ENOUGH_S if ready else 0.05), seed=1)  # fmt: skip
    with pytest.raises(RunTimedOut, match="none of 4" if ready else "not ready to start"):
        graph.run(start())
    assert SumWorld.open == 0


# --- settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["step_timeout", "run_timeout"])
def test_a_limit_is_a_positive_number_of_seconds(name, tmp_path):
    for wrong in (0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError, match=f"{name} must be a positive number of seconds"):
            amc(number_agent(), **arguments(environment=sum_world, **{name: wrong}))
    path = tmp_path / "amc.toml"
    path.write_text(f"[amc]\n{name} = 12.5\n")
    assert getattr(Settings.chosen(Config.load(path), {}), name) == 12.5
    assert getattr(Settings.chosen(Config.load(path), {name: 3.0}), name) == 3.0


async def test_later_failures_are_not_reported_as_unretrieved():
    async def fail():
        raise ValueError("failed")

    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["message"]))
    tasks = [asyncio.create_task(fail()) for _ in range(2)]
    await asyncio.wait(tasks)
    await particle_runner.stop(tasks)
    await asyncio.sleep(0)
    del tasks
    gc.collect()
    assert reported == []
