"""Particles that end, by the agent, by their world or at the horizon, and are retired or kept."""

import numpy as np
import pytest
from langchain.agents import create_agent

from amc_agents import AmcSettings
from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from amc_agents.types import TimeStep
from tests.arguments import arguments
from tests.population.worlds import (
    TASK,
    EndsByNine,
    ReturnSoFar,
    SumWorld,
    digits,
    number_agent,
    say,
    start,
    sum_world,
    tool_caller,
)
from tests.variants import variants


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


@pytest.mark.thorough
@pytest.mark.parametrize("finished", ["keep", "retire"])
@pytest.mark.parametrize("horizon", [2, 3, 50])
def test_a_trajectory_is_truncated_if_a_step_limit_ended_it(horizon, finished):
    run = amc(
        number_agent(),
        ReturnSoFar(),
        environment=lambda s: (CutsAtThree(9), TASK),
        n_particles=20,
        beta=5.0,
        resample=AtSteps(1, 2),
        horizon=horizon,
        settings=AmcSettings(finished=finished),
        seed=0,
    ).run(start())
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
    assert not any(
        trajectory.truncated for trajectory in amc(agent, **arguments(**settings)).run(start()).population.trajectories
    )
    assert all(
        trajectory.truncated
        for trajectory in amc(agent, **arguments(horizon=2, **settings)).run(start()).population.trajectories
    )


def test_a_return_equal_to_stop_at_ends_the_run():
    run = amc(number_agent(lambda m: "Action: 5"), environment=sum_world, n_particles=1, stop_at=20.0).run(start())
    assert run.best.return_ == 20.0
    assert any("stopped at return 20 >= stop_at" in note for note in run.notes)
    assert np.isnan(run.log_evidence)
    missed = amc(number_agent(lambda m: "Action: 5"), environment=sum_world, n_particles=1, beta=1.0,
                 stop_at=20.5).run(start())  # fmt: skip
    assert not any("stopped" in note for note in missed.notes)
    assert np.isfinite(missed.log_evidence)


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
              resample=AtSteps(2), settings=AmcSettings(finished="keep"), beta=1.0, seed=1).run(start())  # fmt: skip
    assert any(0 in range(12) and point.ancestors is not None for point in run.history)
    assert max(trajectory.return_ for trajectory in run.population.trajectories) < 100
    assert run.best.return_ == 100
    assert run.best_index == -1


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
              resample=EssBelow(0.5), settings=AmcSettings(finished=finished), beta=1.0).run(start())  # fmt: skip
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

    run = amc(
        number_agent(nine_at_first_or_never),
        SureOfNines(),
        environment=lambda s: (EndsByNine(4), TASK),
        n_particles=8,
        seed=2,
        beta=20.0,
        resample=AtSteps(1),
        settings=AmcSettings(hide_rewards=True),
    ).run(start())
    assert run.deployable
    assert run.best_index >= 8
    assert [step.action for step in run.best.steps][:1] == ["9"]
    assert set(run.population.values[8:].tolist()) == {9.0}
    assert set(run.population.values[:8].tolist()) == {1.0}


@variants("select", ["return", "value", "weight", "sample"])
def test_stop_at_is_answered_by_a_finished_particle_that_reached_it(select):
    class Dense(SumWorld):
        """The first world ends at step 2 with return 1; the others have 2 after step 1, and would lose it later."""

        first = True

        async def step(self, action):
            await super().step(action)
            step = len(self.taken)
            if self.first:
                return TimeStep.termination("solved", 1.0) if step == 2 else TimeStep.transition("on", 0.0)
            return TimeStep.termination("lost", -2.0) if step == 4 else TimeStep.transition("on", 2.0 * (step == 1))

    def world(state):
        made = Dense()
        made.first, Dense.first = Dense.first, False
        return made, TASK

    for seed in range(3):
        Dense.first = True
        run = amc(number_agent(), environment=world, n_particles=4, stop_at=1.0, select=select, seed=seed).run(start())
        assert (run.stopped_by, run.best.done, run.best.return_) == ("stop_at", True, 1.0)
        assert max(trajectory.return_ for trajectory in run.population.trajectories) == 2.0
