"""Scripted parts for decisions, and a virtual clock: waiting takes no real time."""

from __future__ import annotations

import asyncio
import selectors

import numpy as np

from amc_agents.critics.uses import Judgements
from amc_agents.decisions import Sample


class Script:
    """An actor, rescorer and forward model whose every answer takes `delay` seconds."""

    def __init__(self, samples=(), greedy=None, table=None, answers=None, delay=0.0):
        self._samples, self._greedy, self._table, self._answers = list(samples), greedy, table or {}, answers
        self.delay = delay
        self.asked = []

    async def _wait(self, what):
        self.asked.append(what)
        await asyncio.sleep(self.delay)

    async def sample(self, k):
        await self._wait(("sample", k))
        return self._samples[:k]

    async def greedy(self):
        await self._wait("greedy")
        return self._greedy

    async def log_likelihoods(self, thoughts, actions):
        await self._wait(("rescore", tuple(thoughts), tuple(actions)))
        return np.log([[self._table[thought, action] for action in actions] for thought in thoughts])

    async def answers(self, prompts):
        await self._wait(("imagine", len(prompts)))
        return [self._answers(prompt) for prompt in prompts]


class Odds:
    """A critic with Q by the last action."""

    def __init__(self, q, delay=0.0):
        self._q, self.delay = q, delay
        self.seen = []

    async def log_odds(self, trajectories):
        self.seen.append(list(trajectories))
        await asyncio.sleep(self.delay)
        return np.array([self._q[one.steps[-1].action] for one in trajectories], dtype=float)


class Flagging(Odds):
    """A critic of zeros whose judgements are all flagged."""

    async def judgements(self, trajectories):
        return Judgements(np.zeros(len(trajectories)), np.ones(len(trajectories), dtype=bool))


def acts(*actions, **more):
    return [Sample("", action, payload=number, **more) for number, action in enumerate(actions)]


class _Jump(selectors.DefaultSelector):
    """Where nothing else is to be done, time passes at once."""

    now = 0.0

    def select(self, timeout=None):
        found = super().select(0)
        if not found and timeout:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.clock = _Jump()
        super().__init__(self.clock)

    def time(self):
        return self.clock.now


def virtual_seconds(coroutine):
    """(result, seconds that it would have taken)."""
    loop = _Loop()
    try:
        return loop.run_until_complete(coroutine), loop.time()
    finally:
        loop.close()
