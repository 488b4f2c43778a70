"""Objects and functions of users as critics: which are accepted, which are refused, and how sync critics are called."""

from __future__ import annotations

import asyncio
import copy
import threading
from functools import partial

import numpy as np
import pytest

from amc_agents import AmcSettings
from amc_agents.critics.adapting import adapted, name_of
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.uses import for_lac, nature_of
from amc_agents.errors import ConfigurationError, CriticSpecError
from amc_agents.lac.model import actor_critic_model
from amc_agents.pnlc.model import critique_refine_model
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from amc_agents.testing import ScriptedChatModel, check_critic
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Meter, Usage, metering, record
from tests.population.worlds import number_agent, start, sum_world

STATES = [Trajectory(Task("t", "Climb."), tuple(Step("climb", "up") for _ in range(n))) for n in range(3)]


def lengths(trajectories):
    return [len(trajectory.steps) for trajectory in trajectories]


async def lengths_async(trajectories):
    return lengths(trajectories)


class Sync:
    predicts = "return"

    def values(self, trajectories):
        return np.array(lengths(trajectories), dtype=float)


class Async:
    async def values(self, trajectories):
        return lengths(trajectories)


class Called:
    def __call__(self, trajectories, scale=1):
        return [scale * length for length in lengths(trajectories)]


class CalledAsync:
    async def __call__(self, trajectories):
        return lengths(trajectories)


def decorated(function):
    return lambda trajectories: function(trajectories)


ACCEPTED = {
    "function": lengths,
    "async function": lengths_async,
    "lambda": lambda trajectories: lengths(trajectories),
    "partial": partial(lengths_async),
    "a decorator that hides async": decorated(lengths_async),
    "object": Async(),
    "sync object": Sync(),
    "bound method": Sync().values,
    "callable object": Called(),
    "callable async object": CalledAsync(),
}


@pytest.mark.parametrize("critic", ACCEPTED.values(), ids=ACCEPTED)
async def test_functions_and_objects_are_critics_sync_or_async(critic):
    made = parse_critic(critic)
    assert list(await made.values(STATES)) == [0, 1, 2]
    assert nature_of(made) == ("value" if isinstance(critic, Sync) else "object")


@pytest.mark.thorough
@pytest.mark.parametrize("critic", ACCEPTED.values(), ids=ACCEPTED)
def test_amc_takes_them(critic):
    graph = amc(
        number_agent(),
        critic,
        environment=sum_world,
        settings=AmcSettings(hide_rewards=True),
        n_particles=3,
        resample=AtSteps(2),
    )
    run = graph.run(start())
    assert run.history[0].values.tolist() == [2.0] * 3
    assert run.config["critic"] == name_of(critic)


def test_a_sync_critic_is_tried_once_with_no_trajectories():
    calls = []

    def remembers(trajectories):
        calls.append(len(trajectories))
        return [0.0 for _ in trajectories]

    made = adapted(remembers)
    assert calls == [0]
    adapted(made)
    parse_critic(made)
    assert calls == [0]


@pytest.mark.parametrize(
    "function",
    [
        lambda trajectories: [trajectories[0].return_ for _ in range(3)],
        lambda trajectories: np.stack([np.zeros(2) for _ in trajectories])[:, 0],
        lambda trajectories: trajectories.missing,
    ],
)
def test_a_function_that_needs_at_least_one_trajectory_is_accepted(function):
    assert nature_of(adapted(function)) == "object"


def test_an_async_critic_is_returned_unchanged():
    critic = Async()
    assert adapted(critic) is critic


def test_an_adapted_critic_keeps_other_attributes():
    critic = Sync()
    vars(critic)["usage"] = 7
    made = adapted(critic)
    assert (made.predicts, made.usage, name_of(made)) == ("return", 7, "Sync")
    assert copy.copy(made).usage == 7
    assert adapted(made) is made
    assert name_of(adapted(lengths)) == "lengths"


class Takes:
    """A critic whose methods take wrong arguments."""

    def values(self):
        return []


class TakesTwo:
    async def values(self, trajectories, temperature):
        return []


class WrongReach:
    def reach(self, trajectory, goals):
        return []


class NotAMethod:
    values = (1.0, 2.0)


class WrongPrediction(Sync):
    predicts = "returns"


def one_trajectory(trajectory):
    return float(len(trajectory.steps))


class OneNumber:
    def values(self, trajectories):
        return 0.5


class Column:
    def log_odds(self, trajectories):
        return np.zeros((len(trajectories), 1))


REFUSED = {
    "number": (3, "expected a critic or its string.*got int"),
    "no method": (object(), "expected a critic or its string.*got object"),
    "mapping": ({"a": 1}, "got dict"),
    "list": ([1.0], "got list"),
    "not a method": (NotAMethod(), "got NotAMethod"),
    "class": (Sync, r"got the class Sync: pass an instance, Sync\(\.\.\.\)"),
    "too few": (Takes(), r"critic Takes: Takes.values\(\) cannot be called as Takes.values\(trajectories\)"),
    "too many": (TakesTwo(), r"TakesTwo.values\(trajectories, temperature\) cannot be called as"),
    "function without arguments": (lambda: [], r"\(\) cannot be called as <lambda>\(trajectories\)"),
    "keyword alone": (lambda *, trajectories: [], r"cannot be called as <lambda>\(trajectories\)"),
    "reach": (WrongReach(), r"cannot be called as WrongReach.reach\(trajectory, thought, goals\)"),
    "a single trajectory": (one_trajectory, "one_trajectory reads `steps` of its argument, so it takes a single traj"),
    "a single number": (OneNumber(), r"OneNumber.values answered values of shape \[\], expected \[0\]"),
    "a column": (Column(), r"Column.log_odds answered values of shape \[0, 1\], expected \[0\]"),
    "nothing": (lambda trajectories: None, "answered nan|NoneType|shape"),
    "a mapping": (lambda trajectories: {}, "answered dict, expected"),
    "text": (lambda trajectories: "0.5", "answered str|shape"),
    "a number too many": (lambda trajectories: [0.0, *(1.0 for _ in trajectories)], r"shape \[1\], expected \[0\]"),
    "predicts": (WrongPrediction(), "has predicts='returns': expected 'future'"),
}


@pytest.mark.parametrize(("critic", "message"), REFUSED.values(), ids=REFUSED)
def test_an_invalid_critic_is_refused_where_the_graph_is_built(critic, message):
    model = ScriptedChatModel(respond=lambda messages: "Action: 1")
    builders = [
        lambda: amc(number_agent(), critic, environment=sum_world),
        lambda: actor_critic_model(model, critic, depth=0),
        lambda: critique_refine_model(model, critic),
    ]
    for build in builders:
        with pytest.raises(CriticSpecError, match=message) as caught:
            build()
        assert len(str(caught.value)) <= 400


def test_a_string_may_name_a_function_of_trajectories():
    assert name_of(parse_critic(f"{__name__}:lengths")) == "lengths"
    assert name_of(parse_critic(f"{__name__}:Sync")) == "Sync"
    with pytest.raises(CriticSpecError, match=r"test_adapting:NotAMethod': expected a critic or its string"):
        parse_critic(f"{__name__}:NotAMethod")


async def test_a_sync_critic_does_not_block_the_event_loop_and_is_counted():
    loop_goes_on = threading.Event()

    def waits(trajectories):
        record("critic", Usage(calls=len(trajectories)))
        return [float(loop_goes_on.wait(timeout=10)) for _ in trajectories]

    async def set_it():
        loop_goes_on.set()

    meter = Meter()
    with metering(meter):
        values, _ = await asyncio.gather(parse_critic(waits).values(STATES), set_it())
    assert values == [1.0] * 3
    assert meter.read() == {"critic": Usage(calls=3)}


async def test_lac_takes_sync_methods():
    class Actions:
        def q_values(self, trajectory, actions):
            return [float(len(action)) for action in actions]

    class Verdicts:
        def log_odds(self, trajectories):
            return [2.0] * len(trajectories)

    assert (await for_lac(parse_critic(Actions())).log_odds(STATES[1:])).tolist() == [5.0, 5.0]
    assert await for_lac(parse_critic(Verdicts())).log_odds(STATES) == [2.0] * 3
    with pytest.raises(ConfigurationError, match=r"amc does not take an object with `q_values` \(here Actions\)"):
        amc(number_agent(), Actions(), environment=sum_world)


async def test_check_critic_takes_what_amc_takes():
    await check_critic(lambda trajectories: np.array(lengths(trajectories), dtype=float), STATES)
