import json
import random

import pytest

pytest.importorskip("aviary", reason="the package fhaviary is not installed")

from amc_agents_aviary import AviaryTask, AviaryWorld, aviary_world
from aviary.core import DummyEnv, Environment, Message, Tool

from amc_agents import amc, text_agent
from amc_agents.errors import ConfigurationError, EnvironmentStateError, ReplayDivergence
from amc_agents.smc import AtSteps
from amc_agents.testing import ScriptedChatModel, check_environment
from amc_agents.types import Task


class Counter(Environment):
    """Count to three with a tool; a third call pays 1."""

    def __init__(self, number=0):
        self.number = number

    async def reset(self):
        self.state = 0

        def add(amount: int) -> str:
            """Add to the counter.

            Args:
                amount: how much to add.
            """
            self.state += amount
            return f"The counter is at {self.state}."

        self.tools = [Tool.from_function(add)]
        return [Message(content=f"Count to three (task {self.number}).")], self.tools

    async def step(self, action):
        if not getattr(action, "tool_calls", None):
            return self.default_no_tool_calls_response
        messages = await self.exec_tool_calls(action)
        return messages, float(self.state == 3), self.state >= 3, False


COUNTING = aviary_world("count", Counter, horizon=6, splits={"test": range(5), "train": range(5, 9)})
ADD = json.dumps({"name": "add", "args": {"amount": 1}})


def first_task():
    return next(iter(COUNTING.tasks(1, "test", 2)))


async def test_the_contract_of_an_environment_is_kept():
    await check_environment(COUNTING.make, first_task(), [ADD, "no call", ADD, ADD])


def test_the_instruction_has_the_messages_the_tools_and_the_format():
    task = first_task()
    assert task.id == "count/2"
    assert task.instruction.startswith("Count to three (task 2).\n\nTools:\n\n")
    assert "add" in task.instruction
    assert task.instruction.endswith("or a list of such calls.")
    with pytest.raises(ConfigurationError, match=r"test \(5 tasks\), train \(4 tasks\), got 'test' 3 to 5"):
        list(COUNTING.tasks(3, "test", 3))


async def test_tool_calls_are_executed_and_rewarded():
    made = COUNTING.make()
    await made.reset(first_task())
    answer = await made.step(json.dumps([json.loads(ADD)] * 2))
    assert (answer.observation, answer.reward) == ("The counter is at 1.\nThe counter is at 2.", 0.0)
    last = await made.step(ADD)
    assert (last.observation, last.reward, last.terminated) == ("The counter is at 3.", 1.0, True)


@pytest.mark.parametrize("text", ["add one", "{}", "[]", "3", '{"name": 3, "args": {}}', '{"name": "add"}'])
async def test_a_text_without_a_call_is_answered(text):
    made = COUNTING.make()
    await made.reset(first_task())
    answer = await made.step(text)
    assert "No tool calls received" in answer.observation
    assert not answer.done


async def test_an_unknown_tool_is_answered():
    made = COUNTING.make()
    await made.reset(first_task())
    assert "minus" in (await made.step('{"name": "minus", "args": {}}')).observation


async def test_copies_whose_tools_are_closures_are_caught():
    spec = aviary_world("count", Counter, horizon=6, splits={"test": range(5)}, fork="copy")
    with pytest.raises(AssertionError):
        await check_environment(spec.make, first_task(), [ADD] * 3)


async def test_a_replay_that_differs_is_an_error():
    spec = aviary_world("dummy", lambda number: DummyEnv(), horizon=5, splits={"test": range(1)})
    random.seed(1)
    made = spec.make()
    await made.reset(Task("dummy", "x", AviaryTask(DummyEnv)))
    for _ in range(8):
        await made.step('{"name": "get_random_int", "args": {}}')
    with pytest.raises(ReplayDivergence):
        await made.fork(1)


async def test_wrong_use_is_an_error():
    with pytest.raises(EnvironmentStateError, match="got NoneType"):
        await AviaryWorld().reset(Task("x", "x"))
    with pytest.raises(ConfigurationError, match="replay or copy, got 'process'"):
        aviary_world("count", Counter, horizon=6, splits={}, fork="process")


def test_amc_plays_it():
    task = first_task()
    agent = text_agent(ScriptedChatModel(respond=lambda _: f"Action: {ADD}"))
    search = amc(
        agent, "uniform", environment=lambda _: (COUNTING.make(), task), n_particles=3, horizon=6,
        resample=AtSteps(1), seed=0,
    )  # fmt: skip
    with search.run({"messages": [("user", task.instruction)]}) as run:
        assert run.best.return_ == 1.0
