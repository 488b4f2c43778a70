"""Runs whose number of particles follows the difficulty of the task."""

import asyncio

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents import AmcSettings
from amc_agents.errors import ConfigurationError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.run import Run
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import Adaptive, AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import TimeStep
from tests.arguments import arguments
from tests.population.worlds import TASK, SumWorld, number_agent, say_nothing, start, sum_world
from tests.variants import variants

RULE = Adaptive(start=4, most=16)


class Lottery(SumWorld):
    """A world of 9 steps whose episode ends with the return 1 at the action 9, at the earliest at step `earliest`."""

    earliest = 3

    async def step(self, action):
        self.taken.append(float(action))
        if float(action) == 9 and len(self.taken) >= self.earliest:
            return TimeStep.termination("won", 1.0)
        return (TimeStep.truncation if len(self.taken) == 9 else TimeStep.transition)("go on", 0.0)


class LateLottery(Lottery):
    earliest = 100


class StuckLottery(Lottery):
    """A lottery whose sixth step never ends, so that only a particle that wins before it can end the run."""

    async def step(self, action):
        if len(self.taken) == 5:
            await asyncio.Event().wait()
        return await super().step(action)


class Probability:
    """A critic that predicts the same probability of success for all, and 1 for a success that the text shows."""

    predicts = "return"

    def __init__(self, success):
        self.success, self.calls = success, 0

    async def values(self, trajectories):
        self.calls += 1
        won = np.array([bool(t.steps) and t.steps[-1].observation == "won" for t in trajectories])
        return np.where(won, 1.0, self.success)


class EarlyLottery(Lottery):
    earliest = 1


@pytest.fixture(autouse=True)
def worlds_counted_from_zero():
    for world in (Lottery, LateLottery, StuckLottery, EarlyLottery):
        world.made = world.open = 0


def lottery(world=Lottery, **settings) -> Run:
    given = {"environment": lambda _: (world(9), TASK), "n_particles": RULE, "resample": AtSteps(1, 2),
             "success_reward": 1.0, "beta": 0.1, "seed": 3} | settings  # fmt: skip
    return amc(number_agent(), given.pop("critic", "uniform"), **arguments(**given)).run(start())


def sizes(run):
    return [len(point.log_weights) for point in run.history]


def test_an_undecided_population_doubles_without_a_critic_up_to_the_maximum():
    run = lottery(LateLottery, resample=EveryStep())
    assert sizes(run) == [4, 8, 16, 16, 16, 16, 16, 16, 16]
    assert len(run.population.trajectories) == 16
    assert np.isfinite(run.log_evidence)
    assert not any("stopped" in note for note in run.notes)


@pytest.mark.thorough
def test_a_calibrated_critic_says_how_many_particles_suffice():
    assert sizes(lottery(LateLottery, critic=Probability(0.9)))[:3] == [4, 4, 4]
    assert sizes(lottery(LateLottery, critic=Probability(0.3)))[:3] == [4, 9, 9]
    assert sizes(lottery(LateLottery, critic=Probability(0.01)))[:3] == [4, 16, 16]


@pytest.mark.thorough  # quick: test_an_undecided_population_doubles_...
def test_a_run_that_ends_undecided_starts_another_round_up_to_the_maximum():
    run = lottery(LateLottery, critic=Probability(0.9))
    # Rounds of 4, 4 and 8 particles, each weighed after steps 1 and 2 and at its end.
    assert sizes(run) == [4] * 6 + [8] * 3
    assert [point.step for point in run.history] == [1, 2, 9] * 3
    assert len(run.population.trajectories) == 16
    assert np.isnan(run.log_evidence)
    assert np.exp(run.population.log_weights).sum() == pytest.approx(1.0)
    assert sum("more were started" in note for note in run.notes) == 2
    run.close()
    assert LateLottery.open == 0


@variants("hide_rewards", [True, False])
def test_best_of_n_under_the_same_rule_goes_on_until_a_success(hide_rewards):
    world = Lottery if hide_rewards else StuckLottery
    run = lottery(world, critic=Probability(0.2), resample=Never(), hide_rewards=hide_rewards, seed=1)
    assert run.best.return_ == 1.0
    # Rewards that are seen decide as soon as a particle ends, the critic at the end of a round.
    unfinished = [trajectory for trajectory in run.population.trajectories if not trajectory.done]
    assert bool(unfinished) != hide_rewards
    assert len(run.population.trajectories) < RULE.most


@pytest.mark.thorough
def test_rounds_have_their_own_luck_and_a_seed_repeats_them():
    one, other = (lottery(LateLottery, critic=Probability(0.9)) for _ in range(2))
    actions = [tuple(step.action for step in trajectory.steps) for trajectory in one.population.trajectories]
    assert actions == [tuple(step.action for step in t.steps) for t in other.population.trajectories]
    assert len(set(actions)) == len(actions)


@variants("select", ["weight", "sample"])
def test_a_pick_by_weight_is_never_decided_and_keeps_log_z(select):
    run = lottery(critic=Probability(0.5), select=select)
    assert np.isfinite(run.log_evidence)
    assert not any("stopped" in note or "started" in note for note in run.notes)


def test_a_success_that_was_seen_ends_the_run_and_cancels_the_others():
    run = lottery(StuckLottery, critic=Probability(0.2))
    assert run.best.return_ == 1.0
    unfinished = [trajectory for trajectory in run.population.trajectories if not trajectory.done]
    assert unfinished
    (note,) = [note for note in run.notes if "stopped early" in note]
    assert "with probability at most 0;" in note
    assert f"{len(unfinished)} unfinished particles were cancelled" in note
    assert np.isnan(run.log_evidence)
    assert run.config["n_particles"] == "4..16"
    assert "N = " in repr(run)


def test_every_world_is_closed_when_a_run_stops_early():
    run = lottery(critic=Probability(0.2))
    assert Lottery.open == 1  # The winner's, which is the caller's.
    run.close()
    assert Lottery.open == 0
    assert Lottery.made > RULE.start


def test_in_flight_model_calls_are_cancelled():
    cancelled = []

    class Slow(ScriptedChatModel):
        async def _agenerate(self, messages, *args, **kwargs):
            if particle_rng().integers(4):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(True)
                    raise
            return await super()._agenerate(messages, *args, **kwargs)

    agent = text_agent(Slow(respond=lambda _: "Action: 9"))
    graph = amc(agent, "uniform", environment=lambda _: (EarlyLottery(9), TASK), n_particles=Adaptive(12, 16),
                settings=AmcSettings(success_reward=1.0), seed=0)  # fmt: skip
    run = asyncio.run(graph.arun(start()))
    assert run.best.return_ == 1.0
    assert cancelled
    run.close()
    assert EarlyLottery.open == 0


def test_a_seed_determines_sizes_ancestors_and_the_answer():
    first, again = (lottery(critic=Probability(0.2), resample=EveryStep()) for _ in range(2))
    assert [step.action for step in first.best.steps] == [step.action for step in again.best.steps]
    assert first.best_index == again.best_index
    assert sizes(first) == sizes(again)
    for point, same in zip(first.history, again.history, strict=True):
        np.testing.assert_array_equal(point.log_weights, same.log_weights)
        np.testing.assert_array_equal(point.ancestors, same.ancestors)


@pytest.mark.thorough
def test_without_rewards_the_critic_decides_at_a_weighing_point():
    critic = Probability(0.2)
    run = lottery(critic=critic, hide_rewards=True, resample=EveryStep())
    assert run.deployable
    assert run.best.return_ == 1.0
    assert any("stopped early" in note for note in run.notes)
    assert critic.calls == len(run.history)
    # A critic that is less sure than the confidence never decides.
    doubtful = lottery(critic=Probability(0.2), hide_rewards=True, resample=EveryStep(), success_reward=2.0)
    assert not any("stopped early" in note for note in doubtful.notes)
    assert doubtful.best.return_ == 1.0


def test_a_number_of_particles_or_a_fixed_rule_gives_the_same_run():
    fixed = lottery(critic=Probability(0.2), n_particles=6)
    adaptive = lottery(critic=Probability(0.2), n_particles=Adaptive(6, 6, 1.0), select="weight")
    assert [t.return_ for t in fixed.population.trajectories] == [t.return_ for t in adaptive.population.trajectories]
    assert adaptive.log_evidence == fixed.log_evidence


def answering(answers):
    """An agent that gives a random answer, after up to two tool calls."""

    def respond(messages):
        rounds = sum(isinstance(message, AIMessage) for message in messages)
        if rounds < 2 and particle_rng().integers(2):
            return AIMessage("", tool_calls=[{"name": "say_nothing", "args": {}, "id": f"call-{rounds}"}])
        return AIMessage(str(particle_rng().choice(answers)))

    return create_agent(ScriptedChatModel(respond=respond), [say_nothing])


def vote(answers, seed=0, **settings):
    graph = amc(answering(answers), "uniform", **arguments(n_particles=Adaptive(6, 16), resample=AtSteps(1, 2),
                stateless_tools=True, seed=seed, **settings))  # fmt: skip
    return graph.run({"messages": [HumanMessage("a question")]})


def answers_of(run):
    return [trajectory.steps[-1].action.strip().casefold() for trajectory in run.population.trajectories
            if trajectory.done]  # fmt: skip


def test_without_a_critic_agreement_decides():
    run = vote(["Paris", "paris ", "PARIS"])
    assert any("stopped early" in note for note in run.notes)
    assert 4 <= len(answers_of(run)) < len(run.population.trajectories)
    assert set(answers_of(run)) == {"paris"}


def test_without_agreement_the_run_goes_on():
    run = vote([str(number) for number in range(1000)])
    assert not any("stopped early" in note for note in run.notes)
    assert all(trajectory.done for trajectory in run.population.trajectories)


def test_agreement_counts_the_returns_that_were_seen():
    # Every action is the same text, and the returns differ.
    class Uneven(SumWorld):
        async def step(self, action):
            return TimeStep.termination("", float(particle_rng().random()))

    run = amc(number_agent(lambda _: "Action: 1"), "uniform", environment=lambda _: (Uneven(), TASK),
              n_particles=Adaptive(8, 16)).run(start())  # fmt: skip
    assert not any("stopped early" in note for note in run.notes)
    assert run.best.return_ == max(trajectory.return_ for trajectory in run.population.trajectories)


@variants("seed", range(5))
def test_the_answer_is_the_one_of_the_majority(seed):
    run = vote(["A", "A", "B"], seed=seed)
    answers = answers_of(run)
    assert answers.count(run.best.steps[-1].action.casefold()) >= len(answers) / 2


def test_growth_needs_resampling_points():
    with pytest.raises(ConfigurationError, match=r"resample=Never\(\) has none"):
        amc(number_agent(), environment=sum_world, n_particles=RULE, resample=Never(), select="weight")


def test_a_quorum_is_of_the_smallest_population():
    with pytest.raises(ConfigurationError, match=r"quorum must lie in 1..n_particles=4, got 5"):
        amc(number_agent(), environment=sum_world, n_particles=RULE, settings=AmcSettings(quorum=5))


def test_the_default_is_a_fixed_number():
    run = amc(number_agent(), environment=sum_world).run(start())
    assert run.config["n_particles"] == 15


@pytest.mark.thorough  # quick: test_an_early_stop_picks_a_finished_particle
def test_an_early_stop_ends_a_run_with_durable_points():
    graph = amc(
        number_agent(),
        Probability(0.2),
        environment=lambda _: (Lottery(9), TASK),
        n_particles=RULE,
        resample=EveryStep(),
        settings=AmcSettings(success_reward=1.0),
        beta=0.1,
        seed=3,
        checkpointer=InMemorySaver(),
    )
    run = graph.run(start(), {"configurable": {"thread_id": "a"}})
    assert run.best.return_ == 1.0
    assert any("stopped early" in note for note in run.notes)
    run.close()
    assert Lottery.open == 0


class Hopeful(Probability):
    """Values unfinished particles above a success."""

    async def values(self, trajectories):
        values = await super().values(trajectories)
        return np.where(values == 1.0, 0.96, 0.99)


def test_an_early_stop_picks_a_finished_particle():
    run = lottery(critic=Hopeful(0.0), hide_rewards=True, resample=EveryStep())
    assert run.stopped_by == "decided"
    assert np.nanmax(run.population.values) == 0.99
    assert run.best.return_ == 1.0
