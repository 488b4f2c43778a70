"""`beta="auto"`: the temperature that a run chooses, what it waits for, and what it says about it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents import AmcSettings, smc
from amc_agents.errors import ConfigurationError
from amc_agents.population.wrap import amc
from amc_agents.smc import Adaptive, AtSteps, EveryStep, Never
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
    tool_caller,
)
from tests.variants import variants


class BySlot:
    """Values by step, then slot: `values[t - 1][i]`."""

    def __init__(self, *values):
        self.by_step = values

    async def values(self, trajectories):
        longest = max(len(trajectory.steps) for trajectory in trajectories)
        return np.asarray(self.by_step[min(longest, len(self.by_step)) - 1], dtype=float)[: len(trajectories)]


class Judge(BySlot):
    returns = (0.0, 10.0)


APART = np.linspace(0.0, 1.0, 8)


def run_of(critic=None, **settings):
    given = {"environment": sum_world, "n_particles": 8, "resample": AtSteps(1, 2), "hide_rewards": True, "seed": 0}
    return amc(number_agent(), critic or ReturnSoFar(), **arguments(**given | settings)).run(start())


def chosen(run):
    return [note for note in run.notes if note.startswith("beta=")]


def test_the_first_weighing_halves_the_effective_sample_size_and_the_run_says_so():
    run = run_of()
    first, second = run.history[0], run.history[1]
    assert first.ess == pytest.approx(4.0)
    assert first.ancestors is not None
    np.testing.assert_allclose(first.log_weights + math.log(8), first.values / run.beta)
    # It stays: each later weight is the change of the value by it.
    gained = second.values - first.values[first.ancestors]
    np.testing.assert_allclose(np.diff(second.log_weights), np.diff(gained / run.beta), atol=1e-9)
    assert math.isnan(run.log_evidence)
    (note,) = chosen(run)
    assert f"beta={run.beta:.4g} was chosen at step 1" in note
    assert "log Z is not known" in note
    assert (run.config["beta"], run.as_plain()["beta"]) == ("auto", run.beta)
    assert f"beta {run.beta:.4g} (auto)" in repr(run)


def test_a_number_is_exact_and_gives_log_z():
    run = run_of(beta=3.0)
    assert (run.beta, run.config["beta"], chosen(run)) == (3.0, 3.0, [])
    np.testing.assert_array_equal(run.history[0].log_weights, -np.log(8) + run.history[0].values / 3.0)
    assert np.isfinite(run.log_evidence)


@variants("finished", ["retire", "keep"])
@variants(
    "critic",
    [
        BySlot(0.5 + 1e-3 * APART, APART),
        BySlot(100.0 + 0.4 * APART, 100.0 + 10 * APART),
        BySlot([0.2, 0.3, 0.4, *[0.5] * 5], APART),
        Judge(5.0 + 0.1 * (APART > 0.5), 5.0 + 0.2 * (APART > 0.5)),
    ],
    ids=["the noise of a served model", "less than half a percent", "ties", "neighbouring answers of a judge"],
)
def test_a_weighing_that_cannot_tell_particles_apart_is_waited_out(critic, finished):
    run = run_of(critic, finished=finished, resample=EveryStep())
    first, second = run.history[0], run.history[1]
    assert first.ancestors is None, "nothing is discarded at random"
    assert np.ptp(first.log_weights) == 0
    assert second.ancestors is not None
    assert "chosen at step 2" in chosen(run)[0]


def test_a_beta_of_the_last_weighing_is_not_said_to_belong_to_a_step():
    run = run_of(BySlot(APART), resample=AtSteps(40))
    assert "chosen at the end" in chosen(run)[0]


def test_a_critic_that_gave_no_value_is_named():
    run = run_of(BySlot([math.nan] * 8), resample=EveryStep(), on_critic_error="uniform")
    (note,) = [note for note in run.notes if "the search did nothing" in note]
    assert "gave no value at any weighing point" in note


def test_differences_of_rewards_count_however_large_the_return_is():
    class Far(SumWorld):
        async def step(self, action):
            answer = await super().step(action)
            return replace(answer, reward=answer.reward * 1e-3 + 1e3 * (len(self.taken) == 1))

    run = run_of("uniform", environment=lambda state: (Far(), TASK), hide_rewards=False)
    assert run.history[0].ess == pytest.approx(4.0)


def test_retired_particles_do_not_choose_it_and_kept_ones_do():
    class NineIsBest:
        async def values(self, trajectories):
            last = [float(trajectory.steps[-1].action) for trajectory in trajectories]
            return np.array([100.0 * (digit == 9) + digit for digit in last])

    for finished, of_live in (("retire", True), ("keep", False)):
        run = run_of(NineIsBest(), environment=lambda state: (EndsByNine(), TASK), finished=finished, seed=1)
        first = run.history[0]
        assert (first.values > 100).any()
        live = first.log_weights[first.values < 100]
        assert bool(smc.ess(live) == pytest.approx(len(live) / 2)) is of_live


def test_without_a_beta_nothing_is_resampled_and_the_largest_value_has_the_largest_weight():
    run = run_of(BySlot([0.0] * 5 + [1.0] + [0.0] * 2), select="weight", resample=EveryStep())
    assert (run.beta, run.best_index) == (None, 5)
    assert math.isnan(run.log_evidence)
    assert all(point.ancestors is None for point in run.history)
    assert not any("arbitrary" in note for note in run.notes), "one value is the largest"
    (note,) = [note for note in run.notes if "the search did nothing" in note]
    assert "lower beta" not in note
    assert "weigh at" not in note, "it weighs at every step"


def test_best_of_n_chooses_it_at_the_end():
    run = run_of(resample=Never(), select="weight")
    assert run.history[-1].ess == pytest.approx(4.0)
    assert run.best_index == int(np.argmax(run.population.values))


def test_an_eq_5_model_brings_its_own():
    class Soft(ReturnSoFar):
        beta = 0.3

    own, given = (run_of(Soft(0.1), seed=3, **beta) for beta in ({}, {"beta": 0.3}))
    assert (own.beta, chosen(own)) == (0.3, [])
    assert own.log_evidence == given.log_evidence
    np.testing.assert_array_equal(own.population.log_weights, given.population.log_weights)


def test_a_success_reward_weighs_by_eq_5_with_the_chosen_beta():
    probabilities = np.array([0.001, 0.002, 0.004, 0.005, 0.006, 0.01, 0.05, 0.2])
    run = run_of(BySlot(2.0 * probabilities), success_reward=2.0)
    assert run.history[0].ess == pytest.approx(4.0)
    expected = smc.potentials(np.zeros(8), 2.0 * probabilities, run.beta, 2.0)
    np.testing.assert_allclose(run.history[0].log_weights + math.log(8), expected)


@variants("step", [1, 2])
def test_a_resumed_run_goes_on_with_it(step):
    class Dies(BySlot):
        alive = 2

        async def values(self, trajectories):
            self.alive -= 1
            if self.alive == 0:
                raise ConnectionError("the machine dies")
            return await super().values(trajectories)

    values = (APART * (step == 1), APART[::-1] * 3, APART * 5)
    settings = {"environment": sum_world, "n_particles": 8, "resample": EveryStep(), "hide_rewards": True, "seed": 0}
    plain = amc(number_agent(), BySlot(*values), **arguments(**settings)).run(start())
    graph = amc(number_agent(), Dies(*values), **arguments(checkpointer=InMemorySaver(), **settings))
    thread = {"configurable": {"thread_id": "t"}}
    with pytest.raises(Exception, match="the machine dies"):
        graph.run(start(), thread)
    run = graph.run(None, thread)
    assert f"chosen at step {step}" in chosen(run)[0]
    assert (run.beta, chosen(run)) == (plain.beta, chosen(plain))
    np.testing.assert_array_equal(run.population.log_weights, plain.population.log_weights)
    assert all(math.isnan(point.log_evidence) for point in graph.points(thread))


@pytest.mark.thorough  # quick: test_an_eq_5_model_brings_its_own
def test_a_replay_with_an_eq_5_model_of_another_beta_is_refused():
    class Soft(ReturnSoFar):
        beta = 0.3

    thread = {"configurable": {"thread_id": "t"}}
    graph = amc(number_agent(), ReturnSoFar(), environment=sum_world, n_particles=4, resample=AtSteps(1, 2),
                settings=AmcSettings(hide_rewards=True), seed=0, checkpointer=InMemorySaver())  # fmt: skip
    assert graph.run(start(), thread).beta is not None
    first = graph.points(thread)[-1]
    with pytest.raises(ConfigurationError, match=r"for beta 0\.3 and the run has beta"):
        graph.invoke(None, first.config, context={"critic": Soft()})


def test_a_round_that_chose_none_is_weighed_by_that_of_the_next():
    class LaterRound:
        calls = 0

        async def values(self, trajectories):
            if len(trajectories) == 4 and type(self).calls == 0:
                type(self).calls = 1
                return np.array([0.0, 0.0, 0.0, 1.0])
            return np.array([2.0, 1.5, 1.2, 0.4])

    run = run_of(LaterRound(), n_particles=Adaptive(4, 8), resample=Never())
    values = run.population.values
    assert values.tolist() == [2.0, 1.5, 1.2, 0.4, 0.0, 0.0, 0.0, 1.0]
    np.testing.assert_allclose(run.population.log_weights, values / run.beta - math.log(8))


def test_by_default_an_agent_of_three_steps_is_weighed_before_its_end():
    critic = ReturnSoFar()
    run = amc(create_agent(tool_caller(2), [say]), critic, environment=lambda state: sum_world(state, 9),
              n_particles=4, seed=1).run(start())  # fmt: skip
    assert len(run.best.steps) == 3
    assert run.history[0].step == 2


@pytest.mark.parametrize("beta", ["automatic", 0.0, -1.0, math.nan])
def test_what_is_no_beta_is_refused(beta):
    with pytest.raises(ConfigurationError, match="beta must be a positive number"):
        amc(number_agent(), environment=sum_world, beta=beta)
