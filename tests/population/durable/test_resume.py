"""A run that breaks off goes on from its last durable point, exactly as if it had not."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from amc_agents.budget import Budget
from amc_agents.errors import RunTimedOut
from amc_agents.population.features.durable.durability import DurablePoints
from amc_agents.population.features.durable.points import points_thread
from amc_agents.smc import Adaptive, AtSteps, EssBelow, EveryStep, Never
from tests.population.durable.scenario import CONFIG, LENGTH, N, Scenario, facts
from tests.population.worlds import SumWorld, start

POINTS = {"configurable": {"thread_id": points_thread("t")}}


def sqlite():
    return SqliteSaver(sqlite3.connect(":memory:", check_same_thread=False))


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", [AtSteps(2, 4), EveryStep(), EssBelow(0.7)], ids=str)
@pytest.mark.parametrize("finished", ["retire", "keep"])
def test_durable_points_change_nothing(schedule, finished):
    settings = {"resample": schedule, "finished": finished}
    plain = Scenario(**settings).graph.run(start())
    assert facts(Scenario(InMemorySaver(), **settings).graph.run(start(), CONFIG)) == facts(plain)


@pytest.mark.thorough
@pytest.mark.parametrize("make_saver", [InMemorySaver, sqlite])
@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_run_that_broke_off_at_a_critics_call_ends_as_if_it_had_not(make_saver, call):
    plain = Scenario(resample=EveryStep()).graph.run(start())
    broken = Scenario(make_saver(), resample=EveryStep())
    broken.fails_at_critic_call = call
    with pytest.raises(Exception, match="the machine dies"):
        broken.graph.run(start(), CONFIG)
    assert broken.model_calls == 5 * call
    resumed = broken.graph.run(None, CONFIG)
    assert facts(resumed) == facts(plain)
    assert resumed.best_world.taken == plain.best_world.taken
    resumed.close()
    plain.close()
    repeated = 5
    assert broken.model_calls == 5 * LENGTH + repeated
    assert broken.critic_calls == LENGTH
    assert SumWorld.open == 0


@pytest.mark.thorough
@pytest.mark.parametrize("call", [3, 12, 17, 24])
def test_a_run_that_broke_off_at_a_models_call_ends_as_if_it_had_not(call):
    plain = Scenario().graph.run(start())
    broken = Scenario(InMemorySaver())
    broken.fails_at_model_call = call
    with pytest.raises(Exception, match="the machine dies"):
        broken.graph.run(start(), CONFIG)
    before = broken.critic_calls
    assert facts(broken.graph.run(None, CONFIG)) == facts(plain)
    assert broken.critic_calls == 2, f"{before} calls were recorded and not repeated"


@pytest.mark.thorough  # a process; quick: test_async_savers_are_used_by_their_async_methods
def test_another_process_goes_on_from_the_same_database(tmp_path):
    path = str(tmp_path / "threads.db")
    plain = Scenario().graph.run(start())
    with SqliteSaver.from_conn_string(path) as saver:
        broken = Scenario(saver)
        broken.fails_at_critic_call = 2
        with pytest.raises(Exception, match="the machine dies"):
            broken.graph.run(start(), CONFIG)
    with SqliteSaver.from_conn_string(path) as saver:
        fresh = Scenario(saver)
        assert facts(fresh.graph.run(None, CONFIG)) == facts(plain)
        assert (fresh.model_calls, fresh.critic_calls) == (5 * (LENGTH - 2), 1)


@pytest.mark.thorough  # quick: the other resumed runs of this file
async def test_async_savers_are_used_by_their_async_methods(tmp_path):
    plain = await Scenario().graph.arun(start())
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "threads.db")) as saver:
        broken = Scenario(saver)
        broken.fails_at_critic_call = 2
        with pytest.raises(Exception, match="the machine dies"):
            await broken.graph.arun(start(), CONFIG)
        fresh = Scenario(saver)
        assert facts(await fresh.graph.arun(None, CONFIG)) == facts(plain)
        assert fresh.model_calls == 5 * (LENGTH - 2)
        in_thread = Scenario(saver)
        in_thread.fails_at_critic_call = 2
        other = {"configurable": {"thread_id": "other"}}
        with pytest.raises(Exception, match="the machine dies"):
            await asyncio.to_thread(in_thread.graph.run, start(), other)
        assert facts(await asyncio.to_thread(in_thread.graph.run, None, other)) == facts(plain)


def test_a_new_turn_deletes_the_points_of_the_last():
    saver = InMemorySaver()
    scenario = Scenario(saver)
    thread = points_thread("t")
    scenario.graph.run(start(), CONFIG)
    first = set(saver.storage[thread][""])
    assert len(first) == 3
    scenario.graph.run(start(), CONFIG)
    second = set(saver.storage[thread][""])
    assert len(second) == 3
    assert first.isdisjoint(second)


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", [Never(), AtSteps(4), EssBelow(0.7)], ids=str)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_points_every_k_steps_change_nothing(schedule, every):
    plain = Scenario(resample=schedule, durable_every=every).graph.run(start())
    saver = InMemorySaver()
    scenario = Scenario(saver, resample=schedule, durable_every=every)
    assert facts(scenario.graph.run(start(), CONFIG)) == facts(plain)
    steps = [point.step for point in scenario.graph.points(CONFIG)]
    gaps = [late - early for late, early in zip(steps, [*steps[1:], 0], strict=True)]
    assert max(gaps) <= every


@pytest.mark.thorough
@pytest.mark.parametrize("call", [8, 13, 22, 29])
def test_under_never_a_run_goes_on_from_a_point_every_k_steps(call):
    settings = {"resample": Never(), "durable_every": 2}
    plain = Scenario(**settings).graph.run(start())
    broken = Scenario(InMemorySaver(), **settings)
    broken.fails_at_model_call = call
    with pytest.raises(Exception, match="the machine dies"):
        broken.graph.run(start(), CONFIG)
    before = broken.model_calls
    assert facts(broken.graph.run(None, CONFIG)) == facts(plain)
    assert broken.model_calls - before <= N * LENGTH - 2 * N * ((call - 1) // (2 * N))


@pytest.mark.thorough  # quick: the other resumed runs of this file
async def test_pauses_do_not_hide_a_failure_of_particles():
    """Notes and quorum are those of the weighing points."""
    runs = []
    for saver in (None, InMemorySaver()):
        scenario = Scenario(saver, durable_every=1, quorum=2)
        scenario.fails_at_model_call = 8
        runs.append(facts(await scenario.graph.arun(start(), CONFIG)))
    assert runs[0]["notes"] == runs[1]["notes"]
    assert runs[0]["final"] == runs[1]["final"]


@pytest.mark.thorough
@pytest.mark.parametrize("settings", [{}, {"success_reward": 60.0}], ids=["agreement", "probabilities"])
def test_an_adaptive_number_of_particles_goes_on(settings):
    settings = {"n_particles": Adaptive(start=3, most=9), "resample": EveryStep(), "quorum": 1, **settings}
    plain = Scenario(**settings).graph.run(start())
    assert len(plain.population.trajectories) > 3
    for call in (2, 4):
        broken = Scenario(InMemorySaver(), **settings)
        broken.fails_at_critic_call = call
        with pytest.raises(Exception, match="the machine dies"):
            broken.graph.run(start(), CONFIG)
        assert facts(broken.graph.run(None, CONFIG)) == facts(plain)


def test_each_message_is_stored_once_over_all_points_and_particles():
    saver = InMemorySaver()
    scenario = Scenario(saver, resample=EveryStep())
    run = scenario.graph.run(start(), CONFIG)
    assert len({id(message) for output in run.outputs for message in output["messages"]}) < 1 + 2 * N * LENGTH
    points = [saved.checkpoint["channel_values"]["amc_point"] for saved in saver.list(POINTS)]
    messages = [
        [bytes(node[2]) for node in point["nodes"] if isinstance(node, list) and node[0] == 8] for point in points
    ]
    stored = [message for point in messages for message in point]
    assert len(stored) == len(set(stored)) < 1 + 2 * N * LENGTH
    assert max(map(len, messages)) <= 1 + 2 * N, "a point adds the messages of its step"


def test_a_budget_is_not_reset():
    settings = {"resample": EveryStep()}
    broken = Scenario(InMemorySaver(), budget=Budget(calls=25), **settings)
    broken.fails_at_critic_call = 4
    with pytest.raises(Exception, match="the machine dies"):
        broken.graph.run(start(), CONFIG)
    fresh = Scenario(broken.graph.checkpointer, budget=Budget(calls=25), **settings)
    run = fresh.graph.run(None, CONFIG)
    assert run.stopped_by == "budget"
    assert run.usage["policy"].calls <= 25
    assert fresh.model_calls <= 25 - 3 * N


def test_the_elapsed_time_of_a_restored_run_counts(monkeypatch):
    broken = Scenario(InMemorySaver(), run_timeout=1000.0)
    broken.fails_at_critic_call = 2
    with monkeypatch.context() as patch:
        patch.setattr(DurablePoints, "elapsed_s", 999.99)
        with pytest.raises(Exception, match="the machine dies"):
            broken.graph.run(start(), CONFIG)
    broken.slow_model_s = 0.05
    with pytest.raises(RunTimedOut):
        broken.graph.run(None, CONFIG)


@pytest.mark.thorough  # quick: the other resumed runs of this file
def test_a_run_that_had_reached_stop_at_ends_so_after_a_restart(monkeypatch):
    async def fail(*_):
        raise OSError("the machine dies")

    broken = Scenario(InMemorySaver(), stop_at=1.0, resample=EveryStep())
    with monkeypatch.context() as patch:
        patch.setattr("amc_agents.population.nodes._stream", fail)
        with pytest.raises(OSError, match="the machine dies"):
            broken.graph.run(start(), CONFIG)
    run = broken.graph.run(None, CONFIG)
    assert run.stopped_by == "stop_at"
    assert run.best.return_ >= 1.0
