"""Runs of `amc`: the answer, seeds, resampling, failures, worlds, settings."""

import asyncio
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
from langchain.agents import create_agent

from amc_agents import AmcSettings
from amc_agents.config import Config
from amc_agents.errors import ConfigurationError, QuorumLost
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import (
    TASK,
    ReturnSoFar,
    SumWorld,
    digits,
    number_agent,
    say_nothing,
    start,
    sum_world,
    tool_caller,
)
from tests.variants import variants


def total(messages):
    return float(messages[-1].text.removeprefix("taken "))


# --- the answer ---------------------------------------------------------------------------------------------


def test_the_graph_has_the_agents_schemas():
    agent = number_agent()
    graph = amc(agent, environment=sum_world)
    assert graph.get_input_jsonschema() == agent.get_input_jsonschema()
    assert graph.get_output_jsonschema() == agent.get_output_jsonschema()


async def test_invoke_returns_the_best_particles_output():
    graph = amc(number_agent(), environment=sum_world, n_particles=6, resample=Never(), seed=3)
    run = await graph.arun(start())
    output = await graph.ainvoke(start())
    returns = [trajectory.return_ for trajectory in run.population.trajectories]
    assert len(set(returns)) > 1
    assert run.best.return_ == max(returns) == total(output["messages"])
    assert set(output) == {"messages"}
    assert [m.type for m in output["messages"]] == ["human", *["ai", "human"] * 4]


def test_sync_equals_async_with_a_seed():
    settings = {"environment": sum_world, "n_particles": 5, "resample": AtSteps(1, 2), "beta": 1.0}
    graph = amc(number_agent(), ReturnSoFar(), **arguments(seed=8, **settings))
    sync, by_loop = graph.run(start()), asyncio.run(graph.arun(start()))
    assert [trajectory.return_ for trajectory in sync.population.trajectories] == [
        trajectory.return_ for trajectory in by_loop.population.trajectories
    ]
    assert sync.log_evidence == by_loop.log_evidence
    np.testing.assert_array_equal(sync.history[0].ancestors, by_loop.history[0].ancestors)
    other = amc(number_agent(), ReturnSoFar(), **arguments(seed=9, **settings))
    assert other.run(start()).log_evidence != sync.log_evidence


@pytest.mark.thorough  # quick: test_sync_equals_async_with_a_seed
async def test_a_seeded_run_does_not_depend_on_the_order_of_answers():
    class Unsteady(ScriptedChatModel):
        async def _agenerate(self, *args, **kwargs):
            await asyncio.sleep(random.uniform(0, 0.005))
            return await super()._agenerate(*args, **kwargs)

    agent = text_agent(Unsteady(respond=digits))
    graph = amc(agent, ReturnSoFar(9.0), environment=sum_world, n_particles=8, resample=AtSteps(1), seed=4)
    runs = [await graph.arun(start()) for _ in range(3)]
    assert len(set(runs[0].history[0].ancestors.tolist())) < 8
    actions = [
        [[step.action for step in trajectory.steps] for trajectory in run.population.trajectories] for run in runs
    ]
    assert actions[0] == actions[1] == actions[2]


async def test_invoke_works_inside_a_running_event_loop():
    graph = amc(number_agent(), environment=sum_world, n_particles=3)
    assert len(graph.invoke(start())["messages"]) == 9


def test_select_by_each_rule():
    def run(select, **settings):
        return amc(
            number_agent(),
            ReturnSoFar(0.1),
            **arguments(environment=sum_world, n_particles=5, select=select, seed=2, **settings),
        ).run(start())

    by_return = run("return")
    assert by_return.best.return_ == max(trajectory.return_ for trajectory in by_return.population.trajectories)
    by_value = run("value", hide_rewards=True)
    assert by_value.best_index == int(np.argmax(by_value.population.values))
    assert by_value.deployable
    assert not by_return.deployable
    by_weight = run("weight")
    assert by_weight.best_index == int(np.argmax(by_weight.population.log_weights))
    assert 0 <= run("sample").best_index < 5


# --- steps, schedules, the critic ---------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_ess_criterion_resamples_only_below_its_threshold():
    even = amc(number_agent(lambda m: "Action: 1"), ReturnSoFar(), environment=sum_world, n_particles=5,
               resample=EssBelow(0.5))  # fmt: skip
    assert all(point.ancestors is None for point in even.run(start()).history)
    uneven = amc(number_agent(), ReturnSoFar(5.0), environment=sum_world, n_particles=4, resample=EssBelow(0.9), seed=0)
    assert any(point.ancestors is not None for point in uneven.run(start()).history)


def test_resampling_steers_towards_high_values():
    plain = amc(number_agent(), environment=sum_world, n_particles=20, resample=Never(), seed=0).run(start())
    steered = amc(number_agent(), ReturnSoFar(3.0), environment=sum_world, n_particles=20, resample=EveryStep(), seed=0)
    mean = [
        np.mean([trajectory.return_ for trajectory in run.population.trajectories])
        for run in (plain, steered.run(start()))
    ]
    assert mean[1] > mean[0] + 3


def test_only_the_users_recursion_limit_applies_to_long_runs():
    graph = amc(number_agent(), environment=lambda s: sum_world(s, 40), n_particles=2, resample=AtSteps(20))
    assert len(graph.run(start()).best.steps) == 40
    with pytest.raises(QuorumLost, match="Recursion limit of 30"):
        graph.run(start(), {"recursion_limit": 30})


@variants("bound", [False, True], ids=["of the call", "of the agent"])
@variants("limit", range(5, 11))
def test_a_users_recursion_limit_counts_the_steps_before_a_fork(limit, bound):
    def steps_reached(resample):
        longest = 0

        class Endless(SumWorld):
            async def step(self, action):
                nonlocal longest
                answer = await super().step(action)
                longest = max(longest, len(self.taken))
                return answer

        agent = number_agent().with_config(recursion_limit=limit) if bound else number_agent()
        graph = amc(agent, ReturnSoFar(), environment=lambda state: (Endless(100), TASK), n_particles=3,
                    resample=resample, seed=1)  # fmt: skip
        with pytest.raises(QuorumLost, match=f"Recursion limit of {limit} reached"):
            graph.run(start(), {} if bound else {"recursion_limit": limit})
        return longest

    # The outer graph uses the same limit, so the run resamples only once.
    assert steps_reached(AtSteps(1)) == steps_reached(Never())


# --- failures -----------------------------------------------------------------------------------------------


def test_a_failed_particle_has_weight_zero_and_the_run_continues():
    def respond(messages):
        answer = digits(messages)
        return RuntimeError("model down") if answer.endswith(("7", "8", "9")) and len(messages) == 3 else answer

    run = amc(
        number_agent(respond),
        environment=sum_world,
        n_particles=10,
        settings=AmcSettings(quorum=1),
        resample=Never(),
        seed=4,
    ).run(start())
    failed = np.array(run.population.failed)
    assert 0 < failed.sum() < 10
    assert np.all(np.isneginf(run.population.log_weights[failed]))
    assert np.all(np.isfinite(run.population.log_weights[~failed]))
    assert any("failed" in note for note in run.notes)


def test_below_the_quorum_all_causes_are_raised_and_long_ones_are_shortened():
    def respond(messages):
        answer = digits(messages)
        return RuntimeError(f"{answer[-1]} failed at https://me:secret@host/ " + "x" * 10_000)

    with pytest.raises(QuorumLost, match=r"RuntimeError: \d failed at https://\*\*\*@host/ xx") as caught:
        amc(number_agent(respond), "uniform", environment=sum_world, n_particles=12, seed=1).run(start())
    assert len(str(caught.value)) <= 400
    assert len(caught.value.causes) == 12
    assert SumWorld.open == 0

    def sometimes(messages):
        answer = digits(messages)
        return RuntimeError(f"{answer[-1]} is too many " + "x" * 10_000) if answer[-1] in "56789" else answer

    run = amc(
        number_agent(sometimes),
        environment=sum_world,
        n_particles=12,
        settings=AmcSettings(quorum=1),
        resample=Never(),
        seed=1,
    ).run(start())
    note = next(note for note in run.notes if "particles failed" in note)
    assert "is too many" in note
    assert len(note) <= 400


def test_a_reward_function_must_return_a_finite_number():
    agent = create_agent(tool_caller(1), [say_nothing])
    with pytest.raises(QuorumLost, match="reward= must give a finite return, got -inf"):
        amc(agent, stateless_tools=True, n_particles=2, reward=lambda state: float("-inf")).run(start())


# --- the world ----------------------------------------------------------------------------------------------


def test_worlds_are_created_forked_and_closed():
    SumWorld.made = 0
    run = amc(number_agent(), ReturnSoFar(9.0), environment=sum_world, n_particles=6, resample=AtSteps(2), seed=1).run(
        start()
    )
    ancestors = run.history[0].ancestors
    forks = int(np.sum(ancestors != np.arange(6)))
    assert forks > 0
    assert SumWorld.made == 6 + forks
    assert SumWorld.open == 1
    run.close()
    assert SumWorld.open == 0
    for trajectory in run.population.trajectories:
        assert trajectory.return_ == float(trajectory.steps[-1].observation.removeprefix("taken "))


# --- settings -----------------------------------------------------------------------------------------------


def test_invalid_settings_are_named():
    for settings, match in [
        ({"n_particles": 0}, "n_particles"),
        ({"beta": 0.0}, "beta"),
        *[
            ({"success_reward": wrong}, "success_reward must be a positive number")
            for wrong in (0.0, -1.0, np.nan, np.inf)
        ],
        ({"horizon": 0}, "horizon"),
        ({"quorum": 99}, "quorum"),
        ({"select": "best"}, "select"),
        ({"finished": "drop"}, "finished"),
        ({"resample": 4}, "AtSteps"),
        ({"scheme": "bootstrap"}, "systematic"),
        ({"hide_rewards": True, "select": "return"}, "return"),
        ({"hide_rewards": True, "stop_at": 1.0}, "stop_at"),
        ({"reward": lambda s: 0.0}, "rewards=.world"),
    ]:
        with pytest.raises(ConfigurationError, match=match):
            amc(number_agent(), **arguments(environment=sum_world, **settings))


def test_a_run_without_critic_and_rewards_is_refused_before_the_first_model_call(monkeypatch, tmp_path):
    calls = []

    def respond(messages):
        calls.append(messages)
        return "done"

    agent = create_agent(ScriptedChatModel(respond=respond), [say_nothing])
    graph = amc(agent, stateless_tools=True, n_particles=2)
    with pytest.raises(
        ConfigurationError, match=r"no critic is named.*context=.*reward=.*critic=\"uniform\""
    ) as caught:
        graph.run(start())
    assert len(str(caught.value)) <= 400
    blind = amc(number_agent(), environment=sum_world, settings=AmcSettings(hide_rewards=True), n_particles=2)
    with pytest.raises(ConfigurationError, match="no critic is named"):
        blind.run(start())
    assert calls == []
    assert SumWorld.open == 0
    # Any place may name a critic, even `uniform`.
    assert graph.run(start(), context={"critic": "uniform"}).config["critic_from"] == "context"
    assert graph.run(start(), {"configurable": {"critic": "uniform"}}).config["critic_from"] == "configurable"
    file = tmp_path / "amc.toml"
    file.write_text('critic = "uniform"')
    places = [{"critic": "uniform"}, {"config": Config.load(file)}, {}]
    monkeypatch.setenv("AMC_CRITIC", "uniform")
    for given in places:
        run = amc(agent, **arguments(stateless_tools=True, n_particles=2, **given)).run(start())
        assert run.config["critic_from"] != "default"


async def test_abatch_runs_several_tasks():
    graph = amc(number_agent(), environment=sum_world, n_particles=3)
    outputs = await graph.abatch([start() for _ in range(5)])
    assert all(len(output["messages"]) == 9 for output in outputs)


async def test_a_world_reward_that_is_not_finite_fails_the_particle_and_names_the_action():
    class Broken(SumWorld):
        async def step(self, action):
            return replace(await super().step(action), reward=float("nan"))

    graph = amc(number_agent(), "uniform", environment=lambda state: (Broken(4), TASK), n_particles=2)
    with pytest.raises(QuorumLost, match="gave the reward nan for the action"):
        await graph.arun(start())


def test_a_graph_is_not_pickled_and_says_what_to_do():
    with pytest.raises(TypeError, match="builds it in the worker"):
        pickle.dumps(amc(number_agent(), environment=sum_world))
