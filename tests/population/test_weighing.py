"""Calls of the critic, and its values as potentials and weights."""

import asyncio
import traceback

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents import AmcSettings, effect
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.population.wrap import amc
from amc_agents.quoting import keep_secret
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import (
    TASK,
    EndsByNine,
    ReturnSoFar,
    SumWorld,
    number_agent,
    say,
    start,
    sum_world,
)


@pytest.mark.parametrize(
    ("schedule", "batches"),
    [
        (AtSteps(2), [[2] * 4]),
        (AtSteps(1, 3), [[1] * 4, [3] * 4]),
        (Never(), []),
        (EveryStep(), [[1] * 4, [2] * 4, [3] * 4]),
    ],
)
def test_one_batch_per_weighing_point_and_none_for_the_initial_state(schedule, batches):
    critic = ReturnSoFar()
    amc(number_agent(), critic, environment=sum_world, n_particles=4, resample=schedule).run(start())
    assert critic.batches == batches


def test_with_hidden_rewards_the_critic_evaluates_final_states():
    critic = ReturnSoFar()
    run = amc(
        number_agent(),
        critic,
        environment=sum_world,
        n_particles=4,
        resample=AtSteps(2),
        settings=AmcSettings(hide_rewards=True),
    ).run(start())
    assert critic.batches == [[2] * 4, [4] * 4]
    assert run.select == "value"
    np.testing.assert_allclose(
        run.population.values, [trajectory.steps[-1].reward for trajectory in run.population.trajectories]
    )


def test_critic_can_be_named_per_call():
    mine, per_call = ReturnSoFar(), ReturnSoFar()
    graph = amc(number_agent(), mine, environment=sum_world, n_particles=2, resample=AtSteps(1))
    graph.run(start(), {"configurable": {"critic": per_call}})
    assert (len(mine.batches), len(per_call.batches)) == (0, 1)
    graph.run(start(), context={"critic": per_call})
    assert (len(mine.batches), len(per_call.batches)) == (0, 2)
    graph.run(start(), {"configurable": {"critic": mine}}, context={"critic": "uniform"})
    assert (len(mine.batches), len(per_call.batches)) == (0, 2)


def test_weights_follow_from_the_potentials():
    run = amc(number_agent(), ReturnSoFar(), environment=sum_world, n_particles=4, resample=Never(), beta=2.0).run(
        start()
    )
    returns = np.array([trajectory.return_ for trajectory in run.population.trajectories])
    np.testing.assert_allclose(run.population.log_weights, returns / 2 - np.log(4))
    assert run.log_evidence == pytest.approx(np.log(np.mean(np.exp(returns / 2))))


@tool
@effect("commit")
def report(total: int) -> str:
    """Report a number."""
    return "reported"


def test_the_critic_is_not_asked_about_a_world_that_has_ended_while_its_agent_waits_for_a_commit():
    critic, script = ReturnSoFar(), ["say", "report", "done"]

    def respond(messages):
        name = script[sum(isinstance(message, AIMessage) for message in messages)]
        arguments = {"say": {"number": 3}, "report": {"total": 3}}
        call = {"name": name, "args": arguments.get(name), "id": name}
        return "done" if name == "done" else AIMessage("", tool_calls=[call])

    agent = create_agent(ScriptedChatModel(respond=respond), [say, report])
    run = amc(agent, critic, environment=lambda state: sum_world(state, length=1), n_particles=3,
              resample=AtSteps(1)).run(start())  # fmt: skip
    assert len(run.commits) == 1
    assert critic.batches == [], "no reward is possible after the end of the world, though no agent has finished"
    np.testing.assert_allclose(run.history[0].values, 3.0)


def test_a_success_reward_weighs_by_probabilities():
    class Sure(ReturnSoFar):
        async def values(self, trajectories):
            return np.array([0.03 * len(trajectory.steps[-1].action) for trajectory in trajectories])

    run = amc(number_agent(), Sure(), environment=sum_world, n_particles=4, resample=AtSteps(1), beta=0.2, horizon=1,
              settings=AmcSettings(hide_rewards=True, success_reward=3.0)).run(start())  # fmt: skip
    probability = np.array([0.01 * len(trajectory.steps[-1].action) for trajectory in run.population.trajectories])
    weights = 1 - probability + probability * np.exp(3.0 / 0.2)
    np.testing.assert_allclose(np.exp(run.population.log_weights), weights / 4, rtol=1e-6)
    assert run.config["success_reward"] == 3.0


def test_the_observed_return_is_subtracted_from_a_whole_return_prediction():
    class Whole:
        predicts = "return"

        async def values(self, trajectories):
            return np.array([trajectory.return_ + 5 for trajectory in trajectories])

    run = amc(number_agent(), Whole(), environment=sum_world, n_particles=3, resample=AtSteps(2), beta=1.0,
              seed=0).run(start())  # fmt: skip
    point = run.history[0]
    np.testing.assert_allclose(point.log_weights + np.log(3), point.values)
    returns_then = {sum(step.reward for step in trajectory.steps[:2]) for trajectory in run.population.trajectories}
    assert returns_then <= set((point.values - 5).tolist())


class Fails:
    """A critic that fails after a number of calls, with an exception or an answer."""

    def __init__(self, answer, after=0):
        self.answer, self.after, self.calls = answer, after, 0

    async def values(self, trajectories):
        self.calls += 1
        if self.calls <= self.after:
            return np.array([trajectory.steps[-1].reward for trajectory in trajectories])
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (ConnectionError("refused"), "critic Fails failed: ConnectionError: refused"),
        (ValueError("bad"), "critic Fails failed: ValueError: bad"),
        (KeyError("probs"), "KeyError"),
        (asyncio.CancelledError(), "it raised CancelledError, and nobody cancelled the run"),
        (["0.5"] * 3, "answered list of str"),
        (RuntimeError("x" * 10_000), "RuntimeError: x{300}(?!x)"),
        (["n/a"] * 3, "answered list of str, expected"),
        ([10**400] * 3, "answered list .*, expected"),
        (None, "answered NoneType, expected"),
        ([[1.0], [2.0, 3.0], [4.0]], "expected"),
        (np.array([np.nan] * 3), "answered nan for trajectory 0"),
        (np.array([np.inf] * 3), "answered inf for trajectory 0"),
        (np.zeros(2), "shape"),
        (np.zeros((1, 3)), "shape"),
    ],
)
def test_any_failure_of_a_critic_is_a_critic_error(answer, match):
    settings = {"environment": sum_world, "n_particles": 3, "resample": AtSteps(1), "seed": 0}
    with pytest.raises(CriticError, match=match) as caught:
        amc(number_agent(), Fails(answer), **arguments(**settings)).run(start())
    assert len(str(caught.value)) <= 400
    run = amc(number_agent(), Fails(answer), **arguments(on_critic_error="uniform", **settings)).run(start())
    assert any("step 1: the critic failed" in note for note in run.notes)
    assert np.isnan(run.history[0].values).all()
    np.testing.assert_allclose(run.history[0].log_weights, -np.log(3))
    assert np.isfinite(run.population.values).all(), "with rewards, ends need no critic"
    run.close()
    assert SumWorld.open == 0


def test_a_secret_in_a_critics_exception_is_masked():
    keep_secret("sk-verysecret")
    leaks = Fails(ConnectionError("Bearer sk-verysecret refused by http://me:hunter2@host/"))
    with pytest.raises(CriticError) as caught:
        amc(number_agent(), leaks, environment=sum_world, n_particles=2, resample=AtSteps(1)).run(start())
    assert "refused by http://***@host/" in str(caught.value)
    assert "verysecret" not in "".join(traceback.format_exception(caught.value))


def test_cancellation_and_invalid_settings_are_not_critic_errors():
    settings = {"environment": sum_world, "n_particles": 3, "resample": AtSteps(1), "on_critic_error": "uniform"}
    waiting = asyncio.Event()

    class Waits(Fails):
        async def values(self, trajectories):
            waiting.set()
            await asyncio.Event().wait()

    async def cancelled():
        run = asyncio.ensure_future(amc(number_agent(), Waits(None), **arguments(**settings)).arun(start()))
        await waiting.wait()
        run.cancel()
        await run

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
    with pytest.raises(ConfigurationError, match="another beta"):
        amc(number_agent(), Fails(ConfigurationError("another beta")), **arguments(**settings)).run(start())
    assert SumWorld.open == 0


def test_values_are_nan_after_the_critic_failed():
    settings = {"environment": sum_world, "n_particles": 8, "seed": 1, "hide_rewards": True, "beta": 5.0,
                "on_critic_error": "uniform"}  # fmt: skip
    graph = amc(number_agent(), Fails(OSError("gone"), after=2), **arguments(resample=AtSteps(1, 2, 3), **settings))
    events = [event for event in graph.stream(start(), stream_mode="custom") if event["type"] == "amc.weigh"]
    assert [np.isnan(event["values"]).tolist() for event in events] == [[False] * 8] * 2 + [[True] * 8] * 2
    graph = amc(number_agent(), Fails(OSError("gone"), after=2), **arguments(resample=AtSteps(1, 2, 3), **settings))
    run = graph.run(start())
    assert [bool(np.isnan(point.values).all()) for point in run.history] == [False, False, True, True]
    assert np.isnan(run.population.values).all()
    assert np.isnan(run.log_evidence), "ends were not weighed"
    # No value is known at the end: the largest weight is selected, with a note.
    assert run.best_index == int(np.argmax(run.population.log_weights))
    assert any("selected by weight" in note for note in run.notes)


def test_finished_particles_retire_with_their_return_if_the_critic_fails():
    run = amc(
        number_agent(),
        Fails(OSError("gone")),
        environment=lambda s: (EndsByNine(6), TASK),
        n_particles=8,
        resample=EveryStep(),
        beta=20.0,
        seed=5,
        settings=AmcSettings(on_critic_error="uniform"),
    ).run(start())
    assert len(run.population.trajectories) > 8
    returns = np.array([trajectory.return_ for trajectory in run.population.trajectories])
    # Only its end has changed the weight of a finished particle: from 0 to phi = R / beta.
    np.testing.assert_allclose(run.population.log_weights_since, returns / 20.0)
    np.testing.assert_allclose(run.population.values, returns)
    assert run.log_evidence == pytest.approx(np.logaddexp.reduce(run.population.log_weights))


def test_without_rewards_a_finished_particle_retires_only_after_the_critic_evaluated_it():
    class FailsAtTwo(ReturnSoFar):
        async def values(self, trajectories):
            if max(len(trajectory.steps) for trajectory in trajectories) == 2:
                raise OSError("gone")
            return await super().values(trajectories)

    run = amc(
        number_agent(),
        FailsAtTwo(),
        environment=lambda s: (EndsByNine(6), TASK),
        n_particles=12,
        beta=20.0,
        resample=AtSteps(2, 3),
        seed=3,
        settings=AmcSettings(hide_rewards=True, on_critic_error="uniform"),
    ).run(start())
    assert any(len(trajectory.steps) <= 2 for trajectory in run.population.trajectories), (
        "some end before the critic is back"
    )
    assert run.history[0].retired == ()
    assert len(run.history[1].retired) > 0
    np.testing.assert_allclose(
        run.population.values, [trajectory.steps[-1].reward for trajectory in run.population.trajectories]
    )
