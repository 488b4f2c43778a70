import asyncio
import operator
import random
import traceback
from dataclasses import replace
from typing import Annotated, TypedDict

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from pydantic import BaseModel

from amc_agents.config import Config
from amc_agents.errors import AgentContractError, ConfigurationError, CriticError, CriticSpecError, QuorumLost
from amc_agents.models.seeding import particle_rng
from amc_agents.population import conclusion
from amc_agents.population.graph import amc
from amc_agents.population.search_notes import search_notes as search_notes_of
from amc_agents.population.settings import Settings
from amc_agents.quoting import keep_secret
from amc_agents.runtime.effects import effect
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Step, Task, TimeStep, Trajectory
from tests.population.worlds import (
    TASK,
    ReturnSoFar,
    SumWorld,
    digits,
    number_agent,
    say,
    start,
    sum_world,
    tool_caller,
)


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
    graph = amc(number_agent(), ReturnSoFar(), environment=sum_world, n_particles=5, resample=AtSteps(1, 2), seed=8)
    sync, by_loop = graph.run(start()), asyncio.run(graph.arun(start()))
    assert [trajectory.return_ for trajectory in sync.population.trajectories] == [
        trajectory.return_ for trajectory in by_loop.population.trajectories
    ]
    assert sync.log_evidence == by_loop.log_evidence
    np.testing.assert_array_equal(sync.history[0].ancestors, by_loop.history[0].ancestors)
    other = amc(number_agent(), ReturnSoFar(), environment=sum_world, n_particles=5, resample=AtSteps(1, 2), seed=9)
    assert other.run(start()).log_evidence != sync.log_evidence


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


def test_a_channel_with_a_reducer_is_not_reduced_twice():
    class State(TypedDict):
        messages: Annotated[list, operator.add]
        count: Annotated[int, operator.add]
        marks: Annotated[list, lambda a, b: [*a, "+", *b]]

    @effect("read")
    def tools(state):
        return {"messages": [AIMessage("Action: 1"), HumanMessage("ok")], "count": 1, "marks": ["m"]}

    builder = StateGraph(State)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if state["count"] >= 13 else "tools")
    agent = builder.compile()
    given = {"messages": [HumanMessage("go")], "count": 10, "marks": ["a"]}
    wrapped = amc(agent, n_particles=3, resample=AtSteps(1), reward=lambda state: float(state["count"])).invoke(given)
    bare = agent.invoke(given)
    assert wrapped["count"] == bare["count"] == 13
    assert wrapped["marks"] == bare["marks"]
    assert len(wrapped["messages"]) == len(bare["messages"]) == 7


def test_select_by_each_rule():
    def run(select, **settings):
        return amc(number_agent(), ReturnSoFar(0.1), environment=sum_world, n_particles=5, select=select, seed=2,
                   **settings).run(start())  # fmt: skip

    by_return = run("return")
    assert by_return.best.return_ == max(trajectory.return_ for trajectory in by_return.population.trajectories)
    by_value = run("value", hide_rewards=True)
    assert by_value.best_index == int(np.argmax(by_value.population.values))
    assert by_value.deployable
    assert not by_return.deployable
    by_weight = run("weight")
    assert by_weight.best_index == int(np.argmax(by_weight.population.log_weights))
    assert 0 <= run("sample").best_index < 5


def test_the_best_finished_trajectory_survives_resampling():
    # One particle ends at once with the best return, but the critic prefers all others.
    def respond(messages):
        first = len(messages) == 1
        return f"Action: {100 if first and digits(messages).endswith(('0', '1')) else 1}"

    class EndsAtHundred(SumWorld):
        async def step(self, action):
            answer = await super().step(action)
            return type(answer).termination(answer.observation, answer.reward) if action == "100" else answer

    class PrefersUnfinished:
        async def values(self, trajectories):
            return np.full(len(trajectories), 1e4)

    run = amc(number_agent(respond), PrefersUnfinished(), environment=lambda s: (EndsAtHundred(), TASK), n_particles=12,
              resample=AtSteps(2), finished="keep", seed=1).run(start())  # fmt: skip
    assert any(0 in range(12) and point.ancestors is not None for point in run.history)
    assert max(trajectory.return_ for trajectory in run.population.trajectories) < 100
    assert run.best.return_ == 100
    assert run.best_index == -1


# --- steps, schedules, the critic ---------------------------------------------------------------------------


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
    run = amc(number_agent(), critic, environment=sum_world, n_particles=4, resample=AtSteps(2), hide_rewards=True).run(
        start()
    )
    assert critic.batches == [[2] * 4, [4] * 4]
    assert run.select == "value"
    np.testing.assert_allclose(
        run.population.values, [trajectory.steps[-1].reward for trajectory in run.population.trajectories]
    )


def search_notes(run):
    return [note for note in run.notes if note.startswith(("the search did nothing", "the pick is arbitrary"))]


def test_a_search_with_equal_weights_is_noted_with_advice(caplog):
    conclusion.warn_once.cache_clear()
    # Returns between 0 and 9 at beta 1e4: the ESS is 8 to four digits, with or without a critic.
    for critic in (ReturnSoFar(), "uniform"):
        run = amc(number_agent(), critic, environment=sum_world, n_particles=8, resample=AtSteps(1, 3), beta=1e4,
                  seed=0).run(start())  # fmt: skip
        (note,) = search_notes(run)
        assert all(word in note for word in ("95%", "beta (10000)", "AtSteps(1, 3)", run.config["critic"]))
        assert [record.message for record in caplog.records].count(note) == 1
        amc(number_agent(), critic, environment=sum_world, n_particles=8, resample=AtSteps(1, 3), beta=1e4).run(start())
        assert [record.message for record in caplog.records].count(note) == 1, "logged once for the same settings"


def test_a_run_that_timed_out_before_the_first_weighing_has_no_search_notes():
    assert search_notes_of([], Settings(), stopped=True) == []


def test_a_search_with_one_uneven_point_is_not_noted():
    class UnevenAtThree(ReturnSoFar):
        async def values(self, trajectories):
            return await super().values(trajectories) * (len(trajectories[0].steps) == 3)

    settings = {"environment": sum_world, "n_particles": 8, "hide_rewards": True, "seed": 0, "beta": 0.1}
    run = amc(number_agent(), UnevenAtThree(), resample=AtSteps(1, 3), **settings).run(start())
    assert run.history[0].ess == pytest.approx(8)
    assert run.history[1].ess < 0.95 * 8
    assert search_notes(run) == []


def test_failed_particles_do_not_make_weights_look_uneven():
    def respond(messages):
        answer = digits(messages)
        return RuntimeError("model down") if answer.endswith(("7", "8", "9")) and len(messages) == 1 else answer

    run = amc(number_agent(respond), environment=sum_world, n_particles=10, quorum=1, resample=AtSteps(2), beta=1e4,
              seed=4).run(start())  # fmt: skip
    assert np.isneginf(run.history[0].log_weights).sum() > 1
    assert len(search_notes(run)) == 1


def test_runs_that_end_before_the_first_weighing_point_are_noted():
    short = {"environment": lambda state: sum_world(state, 3), "n_particles": 4}
    (note,) = search_notes(amc(number_agent(), ReturnSoFar(), **short).run(start()))
    assert "before the first weighing point of AtSteps(4)" in note
    assert search_notes(amc(number_agent(), resample=Never(), **short).run(start())) == []
    assert search_notes(amc(number_agent(), n_particles=1, environment=sum_world).run(start())) == []
    stopped = amc(number_agent(), stop_at=0.0, **short).run(start())
    assert search_notes(stopped) == []


@pytest.mark.parametrize("schedule", [Never(), AtSteps(2)])
def test_a_selection_among_equal_values_is_noted_as_arbitrary(schedule):
    blind = {"environment": sum_world, "n_particles": 4, "hide_rewards": True, "resample": schedule}
    assert "the pick is arbitrary" in search_notes(amc(number_agent(), "uniform", **blind).run(start()))[-1]
    assert search_notes(amc(number_agent(), ReturnSoFar(9.0), **blind, seed=1).run(start())) == []


def test_an_ess_criterion_resamples_only_below_its_threshold():
    even = amc(number_agent(lambda m: "Action: 1"), ReturnSoFar(), environment=sum_world, n_particles=5,
               resample=EssBelow(0.5))  # fmt: skip
    assert all(point.ancestors is None for point in even.run(start()).history)
    uneven = amc(number_agent(), ReturnSoFar(5.0), environment=sum_world, n_particles=4, resample=EssBelow(0.9), seed=0)
    assert any(point.ancestors is not None for point in uneven.run(start()).history)


def test_weights_follow_from_the_potentials():
    run = amc(number_agent(), ReturnSoFar(), environment=sum_world, n_particles=4, resample=Never(), beta=2.0).run(
        start()
    )
    returns = np.array([trajectory.return_ for trajectory in run.population.trajectories])
    np.testing.assert_allclose(run.population.log_weights, returns / 2 - np.log(4))
    assert run.log_evidence == pytest.approx(np.log(np.mean(np.exp(returns / 2))))


def test_a_success_reward_weighs_by_probabilities():
    class Sure(ReturnSoFar):
        async def values(self, trajectories):
            return np.array([0.03 * len(trajectory.steps[-1].action) for trajectory in trajectories])

    run = amc(number_agent(), Sure(), environment=sum_world, n_particles=4, resample=AtSteps(1), beta=0.2, horizon=1,
              hide_rewards=True, success_reward=3.0).run(start())  # fmt: skip
    probability = np.array([0.01 * len(trajectory.steps[-1].action) for trajectory in run.population.trajectories])
    weights = 1 - probability + probability * np.exp(3.0 / 0.2)
    np.testing.assert_allclose(np.exp(run.population.log_weights), weights / 4, rtol=1e-6)
    assert run.config["success_reward"] == 3.0


def test_resampling_steers_towards_high_values():
    plain = amc(number_agent(), environment=sum_world, n_particles=20, resample=Never(), seed=0).run(start())
    steered = amc(number_agent(), ReturnSoFar(3.0), environment=sum_world, n_particles=20, resample=EveryStep(), seed=0)
    mean = [
        np.mean([trajectory.return_ for trajectory in run.population.trajectories])
        for run in (plain, steered.run(start()))
    ]
    assert mean[1] > mean[0] + 3


def test_parallel_tool_calls_are_one_step():
    agent = create_agent(tool_caller(2, parallel=3), [say])
    critic = ReturnSoFar()
    run = amc(agent, critic, environment=lambda s: sum_world(s, 100), n_particles=3, resample=AtSteps(1)).run(start())
    assert critic.batches == [[1, 1, 1]]
    assert all(len(trajectory.steps) == 3 for trajectory in run.population.trajectories)
    assert run.best.steps[0].observation.count("taken") == 3


def test_the_horizon_ends_particles_without_bootstrapping():
    critic = ReturnSoFar(7.0)
    run = amc(number_agent(), critic, environment=sum_world, n_particles=3, resample=Never(), horizon=2).run(start())
    assert all(len(trajectory.steps) == 2 and trajectory.done for trajectory in run.population.trajectories)
    assert critic.batches == []


class CutsAtThree(SumWorld):
    """A world that truncates after three steps, and terminates at the action 9."""

    async def step(self, action):
        answer = await super().step(action)
        if action == "9":
            return TimeStep.termination(answer.observation, answer.reward)
        if len(self.taken) == 3:
            return TimeStep.truncation(answer.observation, answer.reward)
        return answer


@pytest.mark.parametrize("finished", ["keep", "retire"])
@pytest.mark.parametrize("horizon", [2, 3, 50])
def test_a_trajectory_is_truncated_if_a_step_limit_ended_it(horizon, finished):
    run = amc(number_agent(), ReturnSoFar(), environment=lambda s: (CutsAtThree(9), TASK), n_particles=20, beta=5.0,
              resample=AtSteps(1, 2), horizon=horizon, finished=finished, seed=0).run(start())  # fmt: skip
    ended = [trajectory.steps[-1].action == "9" for trajectory in run.population.trajectories]
    assert 0 < sum(ended) < len(ended)
    assert all(trajectory.done for trajectory in run.population.trajectories)
    assert [trajectory.truncated for trajectory in run.population.trajectories] == [
        not by_itself for by_itself in ended
    ]
    # No future return is predicted at either limit.
    np.testing.assert_allclose(
        run.population.values, [trajectory.return_ for trajectory in run.population.trajectories]
    )
    assert f"{len(ended) - sum(ended)} cut at the step limit" in repr(run)


def test_an_agent_that_ends_by_itself_is_not_truncated():
    agent = create_agent(tool_caller(2), [say])
    settings = {"environment": lambda s: sum_world(s, 100), "n_particles": 3, "resample": Never()}
    assert not any(trajectory.truncated for trajectory in amc(agent, **settings).run(start()).population.trajectories)
    assert all(
        trajectory.truncated for trajectory in amc(agent, horizon=2, **settings).run(start()).population.trajectories
    )


def test_only_the_users_recursion_limit_applies_to_long_runs():
    graph = amc(number_agent(), environment=lambda s: sum_world(s, 40), n_particles=2, resample=AtSteps(20))
    assert len(graph.run(start()).best.steps) == 40
    with pytest.raises(QuorumLost, match="Recursion limit of 30"):
        graph.run(start(), {"recursion_limit": 30})


@pytest.mark.parametrize("limit", range(5, 20))
def test_a_users_recursion_limit_counts_the_steps_before_a_fork(limit):
    def steps_reached(resample):
        longest = 0

        class Endless(SumWorld):
            async def step(self, action):
                nonlocal longest
                answer = await super().step(action)
                longest = max(longest, len(self.taken))
                return answer

        graph = amc(number_agent(), ReturnSoFar(), environment=lambda state: (Endless(100), TASK), n_particles=3,
                    resample=resample, seed=1)  # fmt: skip
        with pytest.raises(QuorumLost, match=f"Recursion limit of {limit} reached"):
            graph.run(start(), {"recursion_limit": limit})
        return longest

    # The outer graph uses the same limit, so the run resamples only once.
    alone = steps_reached(Never())
    assert alone <= steps_reached(AtSteps(1)) <= alone + 1


def test_a_return_equal_to_stop_at_ends_the_run():
    run = amc(number_agent(lambda m: "Action: 5"), environment=sum_world, n_particles=1, stop_at=20.0).run(start())
    assert run.best.return_ == 20.0
    assert any("stopped at return 20 >= stop_at" in note for note in run.notes)
    assert np.isnan(run.log_evidence)
    missed = amc(number_agent(lambda m: "Action: 5"), environment=sum_world, n_particles=1, stop_at=20.5).run(start())
    assert not any("stopped" in note for note in missed.notes)
    assert np.isfinite(missed.log_evidence)


def test_critic_can_be_named_per_call():
    mine, per_call = ReturnSoFar(), ReturnSoFar()
    graph = amc(number_agent(), mine, environment=sum_world, n_particles=2, resample=AtSteps(1))
    graph.run(start(), {"configurable": {"critic": per_call}})
    assert (len(mine.batches), len(per_call.batches)) == (0, 1)
    graph.run(start(), context={"critic": per_call})
    assert (len(mine.batches), len(per_call.batches)) == (0, 2)
    graph.run(start(), {"configurable": {"critic": mine}}, context={"critic": "uniform"})
    assert (len(mine.batches), len(per_call.batches)) == (0, 2)


def test_a_call_may_not_name_code():
    graph = amc(number_agent(), environment=sum_world, n_particles=2)
    with pytest.raises(CriticSpecError, match="only where the graph is built"):
        graph.run(start(), context={"critic": "os:system?command=true"})


@pytest.mark.parametrize("answer", [[np.nan] * 3, [np.inf] * 3, [0.0] * 2, [[0.0] * 3]])
def test_an_invalid_answer_of_a_critic_raises_or_keeps_the_weights(answer):
    class Broken:
        async def values(self, trajectories):
            return np.array(answer)

    settings = {"environment": sum_world, "n_particles": 3, "resample": AtSteps(1)}
    with pytest.raises(CriticError):
        amc(number_agent(), Broken(), **settings).run(start())
    run = amc(number_agent(), Broken(), on_critic_error="uniform", **settings).run(start())
    assert any("critic failed" in note for note in run.notes)
    assert np.allclose(run.history[0].log_weights, -np.log(3))
    assert SumWorld.open == 0


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


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (ConnectionError("refused"), "critic Fails failed: ConnectionError: refused"),
        (ValueError("bad"), "critic Fails failed: ValueError: bad"),
        (KeyError("probs"), "KeyError"),
        (RuntimeError("x" * 10_000), "RuntimeError: x{300}(?!x)"),
        (["n/a"] * 3, "answered list, expected"),
        ([10**400] * 3, "answered list, expected"),
        (None, "shape"),
        ([[1.0], [2.0, 3.0], [4.0]], "expected"),
    ],
)
def test_any_failure_of_a_critic_is_a_critic_error(answer, match):
    settings = {"environment": sum_world, "n_particles": 3, "resample": AtSteps(1), "seed": 0}
    with pytest.raises(CriticError, match=match) as caught:
        amc(number_agent(), Fails(answer), **settings).run(start())
    assert len(str(caught.value)) <= 400
    run = amc(number_agent(), Fails(answer), on_critic_error="uniform", **settings).run(start())
    assert any("step 1: the critic failed" in note for note in run.notes)
    assert np.isnan(run.history[0].values).all()
    assert np.isfinite(run.population.values).all(), "with rewards, ends need no critic"
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
    # LangGraph may raise its own exception for a cancellation.
    with pytest.raises((asyncio.CancelledError, Exception), check=lambda error: "Cancelled" in type(error).__name__):
        asyncio.run(amc(number_agent(), Fails(asyncio.CancelledError()), **settings).arun(start()))
    with pytest.raises(ConfigurationError, match="another beta"):
        amc(number_agent(), Fails(ConfigurationError("another beta")), **settings).run(start())
    assert SumWorld.open == 0


def test_values_are_nan_after_the_critic_failed():
    settings = {"environment": sum_world, "n_particles": 8, "seed": 1, "hide_rewards": True, "beta": 5.0,
                "on_critic_error": "uniform"}  # fmt: skip
    graph = amc(number_agent(), Fails(OSError("gone"), after=2), resample=AtSteps(1, 2, 3), **settings)
    events = [event for event in graph.stream(start(), stream_mode="custom") if event["type"] == "amc.weigh"]
    assert [np.isnan(event["values"]).tolist() for event in events] == [[False] * 8] * 2 + [[True] * 8] * 2
    graph = amc(number_agent(), Fails(OSError("gone"), after=2), resample=AtSteps(1, 2, 3), **settings)
    run = graph.run(start())
    assert [bool(np.isnan(point.values).all()) for point in run.history] == [False, False, True, True]
    assert np.isnan(run.population.values).all()
    assert np.isnan(run.log_evidence), "ends were not weighed"
    # No value is known at the end: the largest weight is selected, with a note.
    assert run.best_index == int(np.argmax(run.population.log_weights))
    assert any("selected by weight" in note for note in run.notes)


def test_finished_particles_retire_with_their_return_if_the_critic_fails():
    run = amc(number_agent(), Fails(OSError("gone")), environment=lambda s: (EndsByNine(6), TASK), n_particles=8,
              resample=EveryStep(), beta=20.0, seed=5, on_critic_error="uniform").run(start())  # fmt: skip
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

    run = amc(number_agent(), FailsAtTwo(), environment=lambda s: (EndsByNine(6), TASK), n_particles=12, beta=20.0,
              resample=AtSteps(2, 3), seed=3, hide_rewards=True, on_critic_error="uniform").run(start())  # fmt: skip
    assert any(len(trajectory.steps) <= 2 for trajectory in run.population.trajectories), (
        "some end before the critic is back"
    )
    assert run.history[0].retired == ()
    assert len(run.history[1].retired) > 0
    np.testing.assert_allclose(
        run.population.values, [trajectory.steps[-1].reward for trajectory in run.population.trajectories]
    )


def test_the_observed_return_is_subtracted_from_a_whole_return_prediction():
    class Whole:
        predicts = "return"

        async def values(self, trajectories):
            return np.array([trajectory.return_ + 5 for trajectory in trajectories])

    run = amc(number_agent(), Whole(), environment=sum_world, n_particles=3, resample=AtSteps(2), seed=0).run(start())
    point = run.history[0]
    np.testing.assert_allclose(point.log_weights + np.log(3), point.values)
    returns_then = {sum(step.reward for step in trajectory.steps[:2]) for trajectory in run.population.trajectories}
    assert returns_then <= set((point.values - 5).tolist())


# --- failures -----------------------------------------------------------------------------------------------


def test_a_failed_particle_has_weight_zero_and_the_run_continues():
    def respond(messages):
        answer = digits(messages)
        return RuntimeError("model down") if answer.endswith(("7", "8", "9")) and len(messages) == 3 else answer

    run = amc(number_agent(respond), environment=sum_world, n_particles=10, quorum=1, resample=Never(), seed=4).run(
        start()
    )
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
        amc(number_agent(respond), "uniform", environment=sum_world, n_particles=30, seed=1).run(start())
    assert len(str(caught.value)) <= 400
    assert len(caught.value.causes) == 30
    assert SumWorld.open == 0

    def sometimes(messages):
        answer = digits(messages)
        return RuntimeError(f"{answer[-1]} is too many " + "x" * 10_000) if answer[-1] in "56789" else answer

    run = amc(number_agent(sometimes), environment=sum_world, n_particles=30, quorum=1, resample=Never(), seed=1).run(
        start()
    )
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
    assert SumWorld.open == 0
    for trajectory in run.population.trajectories:
        assert trajectory.return_ == float(trajectory.steps[-1].observation.removeprefix("taken "))


def test_tools_act_on_their_particles_world():
    agent = create_agent(tool_caller(3), [say])
    run = amc(agent, environment=lambda s: sum_world(s, 100), n_particles=5, resample=Never(), seed=0).run(start())
    for trajectory in run.population.trajectories:
        assert trajectory.return_ == float(trajectory.steps[2].observation.removeprefix("taken "))
        assert trajectory.steps[-1].action.startswith("finished with")
    assert len({trajectory.return_ for trajectory in run.population.trajectories}) > 1


@tool
def say_nothing() -> str:
    """Do nothing."""
    return "nothing"


def test_the_effects_of_tools_must_be_declared():
    agent = create_agent(tool_caller(1), [say_nothing])
    with pytest.raises(AgentContractError, match=r"say_nothing.*N times over.*stateless_tools"):
        amc(agent)
    amc(agent, stateless_tools=True)


def test_a_tool_node_inside_a_subgraph_needs_step_after():
    inner = StateGraph(MessagesState)
    inner.add_node("act", ToolNode([say_nothing]))
    inner.add_edge(START, "act")
    outer = StateGraph(MessagesState)
    outer.add_node(
        "model",
        lambda state: {"messages": [AIMessage("hm", tool_calls=[{"name": "say_nothing", "args": {}, "id": "1"}])]},
    )
    outer.add_node("worker", inner.compile())
    outer.add_edge(START, "model")
    outer.add_edge("model", "worker")
    agent = outer.compile()
    with pytest.raises(AgentContractError, match="say_nothing"):
        amc(agent, step_after=["worker"])
    with pytest.raises(AgentContractError, match=r"silent|nothing can be resampled.*model, worker"):
        amc(agent, stateless_tools=True)
    with pytest.raises(AgentContractError, match=r"nowhere.*model, worker"):
        amc(agent, stateless_tools=True, step_after=["nowhere"])
    with pytest.raises(AgentContractError, match=r"step_after names nowhere;"):
        amc(agent, stateless_tools=True, step_after="nowhere")
    for named in (["worker"], "worker"):
        graph = amc(agent, "uniform", stateless_tools=True, step_after=named, n_particles=2, resample=Never())
        assert graph.run(start()).best.steps[0].observation == "nothing"


# --- other agents -------------------------------------------------------------------------------------------


def test_an_uncompiled_graph_is_refused():
    with pytest.raises(AgentContractError, match="compiled graph"):
        amc(StateGraph(MessagesState))


def test_a_workflow_of_the_functional_api_is_refused_with_advice():
    @entrypoint()
    def workflow(messages):
        return messages

    with pytest.raises(AgentContractError, match=r"an @entrypoint workflow.*node of a StateGraph.*docs/amc.md"):
        amc(workflow)


def test_compile_time_interrupts_are_refused():
    agent = create_agent(tool_caller(1), [say_nothing], interrupt_before=["tools"])
    with pytest.raises(AgentContractError, match="interrupt_before"):
        amc(agent, stateless_tools=True)


def test_an_interrupt_inside_the_agent_is_refused():
    @tool
    def ask_user(question: str) -> str:
        """Ask."""
        return interrupt(question)

    def respond(messages):
        return AIMessage("", tool_calls=[{"name": "ask_user", "args": {"question": "really?"}, "id": "1"}])

    agent = create_agent(ScriptedChatModel(respond=respond), [ask_user])
    with pytest.raises(AgentContractError, match=r"human input \('really\?'\)"):
        amc(agent, "uniform", stateless_tools=True, n_particles=2).run(start())


def test_an_agent_without_messages_needs_a_trajectory_function():
    class State(TypedDict):
        path: Annotated[list, operator.add]

    builder = StateGraph(State)
    builder.add_node("tools", effect("read")(lambda state: {"path": [len(state["path"])]}))
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["path"]) > 3 else "tools")
    agent = builder.compile()
    with pytest.raises(AgentContractError, match=r"no `messages`.*path.*trajectory="):
        amc(agent, n_particles=2)

    def trajectory(state):
        return Trajectory(Task("t", "walk"), tuple(Step(str(p)) for p in state["path"]))

    critic = ReturnSoFar()
    run = amc(agent, critic, n_particles=2, resample=AtSteps(2), trajectory=trajectory,
              reward=lambda state: float(len(state["path"]))).run({"path": []})  # fmt: skip
    assert critic.batches == [[2, 2]]
    assert run.history[0].ancestors is not None
    assert run.population.values.tolist() == [4.0, 4.0]
    assert len(run.best.steps) == 4


def test_a_pydantic_state_works():
    class State(BaseModel):
        messages: Annotated[list, operator.add] = []
        n: int = 0

    @effect("read")
    def tools(state: State):
        return {"messages": [AIMessage("Action: x"), HumanMessage("y")], "n": state.n + 1}

    builder = StateGraph(State)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if state.n == 2 else "tools")
    output = amc(builder.compile(), "uniform", n_particles=2, resample=AtSteps(1)).invoke(start())
    assert len(output["messages"]) == 5


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
            amc(number_agent(), environment=sum_world, **settings)


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
    blind = amc(number_agent(), environment=sum_world, hide_rewards=True, n_particles=2)
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
        run = amc(agent, stateless_tools=True, n_particles=2, **given).run(start())
        assert run.config["critic_from"] != "default"


async def test_abatch_runs_several_tasks():
    graph = amc(number_agent(), environment=sum_world, n_particles=3)
    outputs = await graph.abatch([start() for _ in range(5)])
    assert all(len(output["messages"]) == 9 for output in outputs)


class EndsByNine(SumWorld):
    async def step(self, action):
        answer = await super().step(action)
        return type(answer).termination(answer.observation, answer.reward) if action == "9" else answer


def test_a_finished_particle_is_retired_with_its_weight():
    run = amc(number_agent(), ReturnSoFar(), environment=lambda s: (EndsByNine(6), TASK), n_particles=8,
              resample=EveryStep(), beta=20.0, seed=5).run(start())  # fmt: skip
    retired = len(run.population.trajectories) - 8
    assert retired == sum(len(point.retired) for point in run.history) > 0
    assert run.log_evidence == pytest.approx(np.logaddexp.reduce(run.population.log_weights))


def test_retired_and_live_particles_compete_by_their_absolute_weights():
    run = amc(number_agent(), ReturnSoFar(), environment=lambda s: (EndsByNine(6), TASK), n_particles=8,
              resample=EveryStep(), beta=20.0, seed=1, select="weight").run(start())  # fmt: skip
    shares = np.exp(run.population.log_weights - run.log_evidence)
    assert shares[run.best_index] == shares.max()
    # Weights since the last resampling are not comparable: the largest belongs to a particle with a smaller share.
    assert shares[np.argmax(run.population.log_weights_since)] < 0.9 * shares.max()


@pytest.mark.parametrize(("finished", "resampled"), [("keep", True), ("retire", False)])
def test_an_ess_criterion_uses_only_the_particles_that_are_resampled(finished, resampled):
    def nine_or_one(messages):
        return f"Action: {9 if len(messages) == 1 and particle_rng().random() < 0.2 else 1}"

    run = amc(number_agent(nine_or_one), environment=lambda s: (EndsByNine(4), TASK), n_particles=8, seed=2,
              resample=EssBelow(0.5), finished=finished).run(start())  # fmt: skip
    first = run.history[0]
    ended = np.array([value == 9.0 for value in first.values])
    # One or two have ended with nearly all the weight; the weights of the others are equal.
    assert 0 < ended.sum() < 4
    assert np.ptp(first.log_weights[~ended]) == 0
    assert first.ess < 4
    assert (first.ancestors is not None) == resampled


def test_a_retired_particle_can_be_selected_without_rewards():
    class SureOfNines(ReturnSoFar):
        async def values(self, trajectories):
            return np.array([9.0 if trajectory.steps[-1].action == "9" else 1.0 for trajectory in trajectories])

    def nine_at_first_or_never(messages):
        return f"Action: {9 if len(messages) == 1 and particle_rng().random() < 0.2 else 1}"

    run = amc(number_agent(nine_at_first_or_never), SureOfNines(), environment=lambda s: (EndsByNine(4), TASK),
              n_particles=8, seed=2, beta=20.0, resample=AtSteps(1), hide_rewards=True).run(start())  # fmt: skip
    assert run.deployable
    assert run.best_index >= 8
    assert [step.action for step in run.best.steps][:1] == ["9"]
    assert set(run.population.values[8:].tolist()) == {9.0}
    assert set(run.population.values[:8].tolist()) == {1.0}


def test_checkpointer_is_the_agents_own_by_default():
    saver = InMemorySaver()
    agent = create_agent(tool_caller(1), [say_nothing], checkpointer=saver)
    assert amc(agent, stateless_tools=True).checkpointer is saver


async def test_a_world_reward_that_is_not_finite_fails_the_particle_and_names_the_action():
    class Broken(SumWorld):
        async def step(self, action):
            return replace(await super().step(action), reward=float("nan"))

    graph = amc(number_agent(), "uniform", environment=lambda state: (Broken(4), TASK), n_particles=2)
    with pytest.raises(QuorumLost, match="gave the reward nan for the action"):
        await graph.arun(start())
