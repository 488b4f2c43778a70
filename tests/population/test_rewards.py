"""Sources of rewards: worlds, a function, both, or none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool

from amc_agents import (
    AmcSettings,
    AtSteps,
    EveryStep,
    Forkable,
    Never,
    Task,
    amc,
    current_environment,
    effect,
    use_environment,
)
from amc_agents.envs import NoFork
from amc_agents.errors import AgentContractError, ConfigurationError, EnvironmentStateError, ForkError, QuorumLost
from amc_agents.models.seeding import particle_rng
from amc_agents.population.settings import reward_source
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, number_agent, start, sum_world
from tests.variants import variants


class World(SumWorld):
    """Counts its own open worlds."""


class Ledger:
    """A `Forkable` without rewards."""

    open = 0

    def __init__(self, entries=()):
        self.entries = list(entries)
        type(self).open += 1

    def write(self, number):
        self.entries.append(number)
        return f"{len(self.entries)} entries"

    async def fork(self, seed):
        return Ledger(self.entries)

    async def close(self):
        type(self).open -= 1


@tool
@effect("world")
def write(number: int) -> str:
    """Write down a number."""
    return current_environment(Ledger).write(number)


def clerk(n_calls=4):
    """An agent that writes down `n_calls` random digits, then answers "done"."""

    def respond(messages):
        if sum(isinstance(message, ToolMessage) for message in messages) == n_calls:
            return "done"
        number = int(particle_rng().integers(10))
        return AIMessage("", tool_calls=[{"name": "write", "args": {"number": number}, "id": f"call-{len(messages)}"}])

    return create_agent(ScriptedChatModel(respond=respond), [write])


def written(trajectory):
    return sum(
        int(step.action.split('"number": ')[1].split("}")[0]) for step in trajectory.steps if "write" in step.action
    )


class Perfect:
    """A critic that predicts the final sum: the written digits, plus 4.5 for each digit still to come."""

    predicts = "return"

    async def values(self, trajectories):
        return np.array([written(each) + 4.5 * (4 - min(4, len(each.steps))) for each in trajectories])


@variants("as_pair", [False, True], ids=["alone", "with a task"])
def test_a_forkable_world_is_steered_by_the_critic_alone(as_pair):
    made = lambda state: (Ledger(), Task("books", "Keep the books.")) if as_pair else Ledger()  # noqa: E731
    assert isinstance(Ledger(), Forkable)
    Ledger.open = 0
    run = amc(clerk(), Perfect(), environment=made, n_particles=8, resample=AtSteps(2), beta=2.0, seed=0).run(start())
    worth = [written(trajectory) for trajectory in run.population.trajectories]
    assert len(set(worth)) > 2
    assert written(run.best) == max(worth)
    assert (run.select, run.deployable, run.config["rewards"]) == ("value", True, None)
    # The potentials are g / beta at the end too, never zero.
    np.testing.assert_allclose(run.population.values, worth)
    assert len(np.unique(run.history[-1].log_weights.round(6))) > 1
    assert run.best.task.id == ("books" if as_pair else "")
    assert len(run.best_world.entries) == 4
    run.close()
    assert Ledger.open == 0
    # Each particle has its own ledger: the winner's tool counted only its own entries.
    assert [step.observation for step in run.best.steps[:4]] == [f"{n} entries" for n in (1, 2, 3, 4)]


def test_with_a_forkable_world_the_critic_is_connected_before_the_first_step():
    class Server(Perfect):
        connected = False

        async def connect(self):
            self.connected = True

        async def values(self, trajectories):
            assert self.connected
            return await super().values(trajectories)

    server = Server()
    amc(clerk(), server, environment=lambda state: Ledger(), n_particles=2, resample=Never()).run(start())
    assert server.connected


def test_rewards_false_ignores_the_worlds_rewards():
    class Silent(SumWorld):
        async def step(self, action):
            answer = await super().step(action)
            return type(answer)(answer.observation, 7.0, answer.terminated)

    class LastDigit(ReturnSoFar):
        async def values(self, trajectories):
            return np.array([float(trajectory.steps[-1].action) for trajectory in trajectories])

    settings = {"environment": lambda state: (Silent(), TASK), "n_particles": 6, "resample": AtSteps(2), "seed": 0}
    run = amc(number_agent(), LastDigit(), **arguments(rewards=False, **settings)).run(start())
    last = [float(trajectory.steps[-1].action) for trajectory in run.population.trajectories]
    assert run.select == "value"
    assert float(run.best.steps[-1].action) == max(last)
    assert {step.reward for trajectory in run.population.trajectories for step in trajectory.steps} == {0.0}
    with pytest.raises(ConfigurationError, match="needs rewards"):
        amc(number_agent(), LastDigit(), **arguments(rewards=False, select="return", **settings))


def test_a_forkable_world_without_a_critic_is_refused():
    Ledger.open = 0
    with pytest.raises(ConfigurationError, match="no critic is named"):
        amc(clerk(), environment=lambda state: Ledger(), n_particles=2).run(start())
    with pytest.raises(ConfigurationError, match="needs rewards"):
        amc(clerk(), Perfect(), environment=lambda state: Ledger(), n_particles=2, select="return").run(start())
    assert Ledger.open == 0


@pytest.mark.parametrize(("rewards", "factor"), [("world", 1.0), ("function", 10.0), ("both", 11.0)])
def test_rewards_selects_among_two_sources(rewards, factor):
    def ten_times(state):
        taken = [message.text for message in state["messages"] if message.text.startswith("taken")]
        return 10.0 * float(taken[-1].removeprefix("taken ")) if taken else 0.0

    run = amc(
        number_agent(),
        ReturnSoFar(),
        environment=sum_world,
        reward=ten_times,
        settings=AmcSettings(rewards=rewards),
        n_particles=5,
        resample=EveryStep(),
        beta=20.0,
        seed=1,
    ).run(start())
    assert any(len(set(point.ancestors.tolist())) < 5 for point in run.history[:-1])
    for trajectory in run.population.trajectories:
        assert [step.reward for step in trajectory.steps] == pytest.approx(
            [factor * float(step.action) for step in trajectory.steps]
        )
    returns = [trajectory.return_ for trajectory in run.population.trajectories]
    assert run.best.return_ == max(returns)
    np.testing.assert_allclose(run.population.values, returns)
    assert run.config["rewards"] == rewards


def test_a_reward_function_works_with_a_forkable_world():
    run = amc(
        clerk(),
        environment=lambda state: Ledger(),
        settings=AmcSettings(rewards="function"),
        n_particles=4,
        resample=AtSteps(2),
        reward=lambda state: float(len(state["messages"])),
    ).run(start())
    assert run.select == "return"
    assert run.best.return_ == 10.0
    for named in ("world", "both"):
        with pytest.raises(ConfigurationError, match=f'rewards="{named}" needs worlds with rewards, but'):
            amc(
                clerk(),
                environment=lambda state: Ledger(),
                settings=AmcSettings(rewards=named),
                reward=lambda state: 0.0,
            ).run(start())


@pytest.mark.parametrize(
    ("given", "has_world", "has_function", "expected"),
    [
        (None, False, False, None), (None, True, False, "world"), (None, False, True, "function"),
        (False, True, False, None), (False, False, False, None),
        ("world", True, False, "world"), ("world", True, True, "world"), ("function", True, True, "function"),
        ("function", False, True, "function"), ("both", True, True, "both"),
    ],
)  # fmt: skip
def test_reward_source(given, has_world, has_function, expected):
    assert reward_source(given, has_world=has_world, has_function=has_function) == expected


@pytest.mark.parametrize(
    ("given", "has_world", "has_function", "match"),
    [
        (None, True, True, r'rewards="world", "function" or "both"'),
        (False, True, True, "omit reward="),
        ("world", False, True, "give environment="),
        ("both", False, True, "give environment="),
        ("both", True, False, "give reward="),
        ("function", True, False, "give reward="),
        ("worlds", True, False, "rewards must be"),
        (True, True, False, "rewards must be"),
    ],
)
def test_an_ambiguous_or_missing_reward_source_is_refused(given, has_world, has_function, match):
    with pytest.raises(ConfigurationError, match=match):
        reward_source(given, has_world=has_world, has_function=has_function)


def test_returns_that_are_all_zero_are_noted():
    class Penniless(SumWorld):
        async def step(self, action):
            answer = await super().step(action)
            return type(answer)(answer.observation, 0.0, answer.terminated)

    def noted(run):
        return [note for note in run.notes if note.startswith("every return was 0")]

    settings = {"environment": lambda state: (Penniless(), TASK), "n_particles": 3, "resample": Never()}
    (note,) = noted(amc(number_agent(), **arguments(**settings)).run(start()))
    assert "rewards=False" in note
    assert noted(amc(number_agent(), "uniform", **arguments(rewards=False, **settings)).run(start())) == []
    assert noted(amc(number_agent(), "uniform", **arguments(hide_rewards=True, **settings)).run(start())) == []
    assert noted(amc(number_agent(), environment=sum_world, n_particles=3, resample=Never()).run(start())) == []


@pytest.mark.parametrize("given", [World(), (TASK, World()), (World(), "task"), None, (Ledger(), None)])
def test_an_invalid_result_of_environment_is_refused(given):
    with pytest.raises(
        AgentContractError, match=r"expected \(world, Task\(\.\.\.\)\).*fork\(seed\) and close\(\)"
    ) as caught:
        amc(number_agent(), environment=lambda state: given, n_particles=2).run(start())
    assert len(str(caught.value)) <= 400


async def test_worlds_that_cannot_fork_are_created_n_times():
    made = []

    class Single(Ledger):
        async def fork(self, seed):
            return await NoFork(World(), "one seat").fork(seed)

    async def make(state):
        made.append(Single())
        return made[-1]

    await amc(clerk(), Perfect(), environment=make, n_particles=3, resample=Never()).arun(start())
    assert len(made) == 3


def test_one_run_has_one_task():
    numbers = iter(range(9))

    class Single(World):
        made = open = 0

        async def fork(self, seed):
            raise ForkError("one seat")

    def make(state):
        return Single(), Task(f"task/{next(numbers)}", "Write.")

    with pytest.raises(AgentContractError, match=r"'task/1'.* after .*'task/0'.* same run"):
        amc(number_agent(), environment=make, n_particles=2, resample=Never()).run(start())
    assert Single.made == 2
    assert Single.open == 0


@pytest.mark.parametrize("reward", ["0.5", 1 + 0j, [1.0], None])
def test_rewards_that_are_no_real_numbers_are_refused(reward):
    class Odd(World):
        async def step(self, action):
            return replace(await super().step(action), reward=reward)

    with pytest.raises(QuorumLost, match="the world gave as reward"):
        amc(number_agent(), environment=lambda state: (Odd(), TASK), n_particles=1, resample=Never()).run(start())
    with pytest.raises(QuorumLost, match="reward= must give a number, got"):
        amc(
            number_agent(),
            reward=lambda state: reward,
            environment=sum_world,
            settings=AmcSettings(rewards="function"),
            n_particles=1,
            resample=Never(),
        ).run(start())


def test_current_environment_checks_the_worlds_class():
    ledger = Ledger()
    with use_environment(ledger):
        assert current_environment(Ledger) is ledger
        with pytest.raises(EnvironmentStateError, match="the world is a Ledger"):
            current_environment(SumWorld)
    with pytest.raises(EnvironmentStateError, match="called without a world"):
        current_environment(Ledger)
