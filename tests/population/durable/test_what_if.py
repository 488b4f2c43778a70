"""Go back to a durable point: the same run again, or another critic or seed."""

from __future__ import annotations

import numpy as np
import pytest
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents.errors import ConfigurationError
from amc_agents.smc import EveryStep
from tests.population.durable.scenario import CONFIG, LENGTH, N, Scenario, facts
from tests.population.worlds import start
from tests.variants import variants


@pytest.fixture
def scenario():
    scenario = Scenario(InMemorySaver(), resample=EveryStep())
    scenario.first = facts(scenario.graph.run(start(), CONFIG))
    scenario.model_calls = 0
    return scenario


def with_keys(point, **configurable):
    return {"configurable": {**point.config["configurable"], **configurable}}


def test_points_tell_step_ess_and_log_z(scenario):
    points = scenario.graph.points(CONFIG)
    assert [point.step for point in points] == [6, 5, 4, 3, 2, 1]
    assert all(0.999 <= point.ess <= N + 0.001 for point in points)
    assert points[0].log_evidence == pytest.approx(scenario.first["log Z"])
    states = {
        state.config["configurable"]["checkpoint_id"]: state for state in scenario.graph.get_state_history(CONFIG)
    }
    nexts = [states[point.config["configurable"]["checkpoint_id"]].next for point in points]
    assert nexts == [("finalize",), *[("propagate",)] * 5]
    assert all("amc_point" not in state.values for state in states.values())


@variants("n_back", [0, 2, 5])
def test_a_replay_without_changes_is_the_same_run(scenario, n_back):
    point = scenario.graph.points(CONFIG)[n_back]
    assert facts(scenario.graph.run(None, point.config)) == scenario.first
    assert scenario.model_calls == N * (LENGTH - point.step)


async def test_async_points(scenario):
    assert await scenario.graph.apoints(CONFIG) == scenario.graph.points(CONFIG)


def test_another_critic_changes_only_what_comes_after(scenario):
    class Contrary:
        async def values(self, trajectories):
            return np.array([-5 * float(trajectory.steps[-1].action) for trajectory in trajectories])

    point = scenario.graph.points(CONFIG)[3]
    other = facts(scenario.graph.run(None, with_keys(point, critic=Contrary())))
    assert other["ancestors"][: point.step] == scenario.first["ancestors"][: point.step]
    assert other["ancestors"] != scenario.first["ancestors"]
    assert other["config"]["critic_from"] == "configurable"


@pytest.mark.thorough  # quick: test_another_critic_changes_only_what_comes_after
def test_another_seed_changes_only_what_comes_after(scenario):
    point = scenario.graph.points(CONFIG)[3]
    runs = [facts(scenario.graph.run(None, with_keys(point, amc_seed=seed))) for seed in (8, 8, 9)]
    assert runs[0] == runs[1]
    assert runs[0]["texts"] != runs[2]["texts"]
    for run in runs:
        assert run["ancestors"][: point.step] == scenario.first["ancestors"][: point.step]
        assert run["texts"] != scenario.first["texts"]
        assert any("replayed with seed" in note for note in run["notes"])
    assert [run["seed"] for run in runs] == [8, 8, 9]


def test_a_replay_has_points_of_its_own(scenario):
    point = scenario.graph.points(CONFIG)[3]
    branch = facts(scenario.graph.run(None, with_keys(point, amc_seed=8)))
    points = scenario.graph.points(CONFIG)
    assert [point.step for point in points] == [6, 5, 4, 6, 5, 4, 3, 2, 1]
    assert facts(scenario.graph.run(None, points[1].config)) == branch
    assert facts(scenario.graph.run(None, points[4].config)) == scenario.first


@pytest.mark.thorough  # quick: test_another_seed_changes_only_what_comes_after
def test_a_replay_that_breaks_off_goes_on_as_itself(scenario):
    point = scenario.graph.points(CONFIG)[3]
    seeded = with_keys(point, amc_seed=8)
    whole = facts(scenario.graph.run(None, seeded))
    for call in (1, 2):
        scenario.critic_calls, scenario.fails_at_critic_call = 0, call
        with pytest.raises(Exception, match="the machine dies"):
            scenario.graph.run(None, seeded)
        scenario.fails_at_critic_call = None
        rest = {"configurable": {**CONFIG["configurable"], "amc_seed": 8}}
        assert facts(scenario.graph.run(None, rest)) == whole


@pytest.mark.thorough  # quick: the other replays of this file
def test_a_seed_of_a_call_is_the_runs_seed():
    plain = facts(Scenario(seed=8).graph.run(start()))
    assert facts(Scenario(seed=3).graph.run(start(), {"configurable": {"amc_seed": 8}})) == plain
    with pytest.raises(ConfigurationError, match="amc_seed must be a whole number"):
        Scenario().graph.run(start(), {"configurable": {"amc_seed": "8"}})


@pytest.mark.thorough  # quick: test_a_replay_has_points_of_its_own
def test_a_deleted_point_restarts_the_run(scenario, caplog):
    old = scenario.graph.points(CONFIG)[3]
    scenario.graph.run(start(), CONFIG)
    assert old not in scenario.graph.points(CONFIG)
    scenario.model_calls = 0
    run = scenario.graph.run(None, old.config)
    assert facts(run) == scenario.first, "from its input, with the same seed"
    assert scenario.model_calls == N * LENGTH
    assert "its durable point at step 3 was deleted" in caplog.text


def test_other_settings_are_refused(scenario):
    point = scenario.graph.points(CONFIG)[3]
    other = Scenario(scenario.graph.checkpointer, resample=EveryStep(), n_particles=4, quorum=4)
    with pytest.raises(ConfigurationError, match="started with n_particles=5 and cannot go on with n_particles=4"):
        other.graph.run(None, point.config)


def test_points_need_a_checkpointer():
    with pytest.raises(ConfigurationError, match="checkpointer"):
        Scenario().graph.points(CONFIG)
