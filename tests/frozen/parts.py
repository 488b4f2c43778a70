"""Worlds, agents and critics of the frozen configurations.

They use documented names only and nothing of the other tests, so that neither a rebuild of the package nor one of the
tests changes what is recorded. All rewards and values are multiples of 1/8: sums of them are exact on every processor.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool, tool
from langgraph.config import get_stream_writer

from amc_agents import Task, TimeStep, current_environment, effect, text_agent
from amc_agents.errors import ForkError
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

TASK = Task("count", "Say numbers; an eighth of their sum is your return.")
START = {"messages": [HumanMessage(TASK.instruction)]}


class Counter:
    """An action is a digit, an eighth of which is its reward; the episode ends after `length` of them, or at `end`."""

    def __init__(self, length=4, end="", log=None):
        self.length, self.end, self.taken = length, end, []
        self.log = [] if log is None else log
        """What happened to all worlds of a run."""
        self.log.append("made")

    async def reset(self, task):
        self.taken = []
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        self.taken.append(int(action))
        ended = len(self.taken) == self.length or action == self.end
        answer = TimeStep.termination if ended else TimeStep.transition
        return answer(f"taken {sum(self.taken)}", int(action) / 8)

    async def fork(self, seed):
        copy = type(self)(self.length, self.end, self.log)
        copy.taken = list(self.taken)
        self.log.append("forked")
        return copy

    async def close(self):
        self.log.append("closed")


class Unforkable(Counter):
    """A world that a wrapper must replay."""

    async def fork(self, seed):
        raise ForkError("it has no fork")


class Notebook:
    """A world without rewards whose state outlives its process: a list of words."""

    def __init__(self):
        self.words = []

    async def fork(self, seed):
        copy = Notebook()
        copy.words = list(self.words)
        return copy

    async def close(self):
        pass

    async def snapshot(self):
        return {"words": list(self.words)}

    async def restore(self, snapshot):
        self.words = list(snapshot["words"])

    async def release(self, snapshot):
        pass


def counter(**options):
    """The `environment` of `Counter`."""
    return lambda state: (Counter(**options), TASK)


def counted(message, messages):
    """The message with a usage that depends on the conversation's length."""
    n = len(messages)
    usage = {"input_tokens": 8 * n, "output_tokens": n + 3, "total_tokens": 9 * n + 3}
    answer = AIMessage(message) if isinstance(message, str) else message
    return answer.model_copy(update={"usage_metadata": usage, "response_metadata": {"model_name": "script"}})


def digits(messages):
    """A policy that says a random digit of the particle's stream."""
    return counted(f"Thought: any\nAction: {particle_rng().integers(10)}", messages)


def fails_at_zero(messages):
    """`digits`, but the model is down for particles that draw a 0."""
    answer = digits(messages)
    return ConnectionError("the model is down") if answer.text.endswith("0") else answer


def digit_agent(respond=digits):
    return text_agent(ScriptedChatModel(respond=respond))


class LastReward:
    """Predicts a multiple of the last reward."""

    def __init__(self, factor=1.0):
        self.factor = factor

    async def values(self, trajectories):
        return np.array([self.factor * trajectory.steps[-1].reward for trajectory in trajectories])


class LastDigit:
    """Predicts an eighth of the last action, which it also reads where rewards are hidden."""

    def __init__(self, scale=8, fails_at=()):
        self.scale, self.fails_at, self.n_calls = scale, fails_at, 0

    async def values(self, trajectories):
        self.n_calls += 1
        if self.n_calls in self.fails_at:
            raise ConnectionError("the machine dies")
        return np.array([self._value(trajectory) for trajectory in trajectories])

    def _value(self, trajectory):
        return int(trajectory.steps[-1].action) / self.scale


class Chosen(LastDigit):
    """A critic trained for a temperature (eq. 5)."""

    beta = 0.5


class Success(LastDigit):
    """A probability of success: an eighth of the last digit, at most 1."""

    predicts = "return"

    def _value(self, trajectory):
        return min(1.0, int(trajectory.steps[-1].action) / 8)


class FirstSlot:
    """Prefers the particle in the first slot."""

    async def values(self, trajectories):
        return 8.0 * (np.arange(len(trajectories)) == 0)


# Agents with tools


@tool
@effect("world")
async def say(number: int) -> str:
    """Say a number."""
    get_stream_writer()({"said": number})
    return (await current_environment().step(str(number))).observation


@tool
@effect("world")
async def write(word: str) -> str:
    """Write a word down."""
    current_environment(Notebook).words.append(word)
    return " ".join(current_environment(Notebook).words)


def call(name, call_id, **args):
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": call_id}])


def results(messages, name=None):
    """The results of a tool in the newest turn."""
    asked = max(i for i, message in enumerate(messages) if isinstance(message, HumanMessage))
    found = [message for message in messages[asked:] if isinstance(message, ToolMessage)]
    return [message for message in found if name in (None, message.name)]


def talker(messages):
    """Calls `say` three times, then answers."""
    if len(results(messages)) == 3:
        return counted(f"done: {results(messages)[-1].text}", messages)
    return counted(call("say", f"say-{len(messages)}", number=int(particle_rng().integers(10))), messages)


def writer(messages):
    """Writes two words, then answers."""
    if len(results(messages)) == 2:
        return counted(f"wrote: {results(messages)[-1].text}", messages)
    word = "abcdefgh"[int(particle_rng().integers(8))]
    return counted(call("write", f"write-{len(messages)}", word=word), messages)


async def prefers_late_letters(trajectories):
    return np.array([sum("abcdefgh".index(word) for word in _words(each)) / 8 for each in trajectories])


def _words(trajectory):
    return [json.loads(step.action)["args"]["word"] for step in trajectory.steps if step.action.startswith("{")]


# A shop with effects that must happen once

EFFECTS: dict[str, Any] = {"look": "read", "refund": "commit"}


def shop_tools(done):
    """The tools `look` and `refund`, which append what they do to `done`."""

    async def look(item: int) -> str:
        """Look an item up."""
        return f"item {item}"

    async def refund(amount: int) -> str:
        """Pay a refund."""
        done.append(f"refund {amount}")
        return f"paid {amount}"

    return [StructuredTool.from_function(coroutine=each, name=each.__name__) for each in (look, refund)]


def clerk(messages):
    """Look once or twice, refund an amount, look again, refund another, and answer with a digit."""
    rng, n = particle_rng(), len(messages)
    paid, looked = results(messages, "refund"), results(messages, "look")
    if len(paid) == 2:
        return counted(f"done {rng.integers(10)}", messages)
    if len(looked) <= len(paid) or (len(looked) == 1 and rng.random() < 0.5):
        return counted(call("look", f"look-{n}", item=int(rng.integers(10))), messages)
    return counted(call("refund", f"refund-{n}", amount=int(rng.integers(64))), messages)


def unequal(messages):
    """Particles that draw an odd number answer at once; the others ask for a refund."""
    if results(messages):
        return counted("done", messages)
    number = int(particle_rng().integers(64))
    answer = f"no refund {number}" if number % 2 else call("refund", "only", amount=number)
    return counted(answer, messages)


def refunds(trajectory):
    """Amounts of the refunds in a trajectory, pending calls included."""
    calls = [json.loads(step.action) for step in trajectory.steps if step.action.startswith("{")]
    return [each["args"]["amount"] for each in calls if each["name"] == "refund"]


async def prefers_large_refunds(trajectories):
    return np.array([sum(refunds(each)) / 8 for each in trajectories])


async def prefers_no_refund(trajectories):
    return np.array([-float(len(refunds(each))) for each in trajectories])


def with_reward(message_reward):
    """A world's class whose rewards are `message_reward(action)`."""

    class Rewarding(Counter):
        async def step(self, action):
            answer = await super().step(action)
            return replace(answer, reward=message_reward(action))

    return Rewarding
