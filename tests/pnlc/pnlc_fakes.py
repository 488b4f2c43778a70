"""Scripted parts for PNLC's decision: an agent, a proposer and a goal critic of known behaviour."""

from __future__ import annotations

import asyncio
import re

import numpy as np

from amc_agents.decisions import Sample

KEEP = "Diagnosis: It will work.\nDecision: KEEP"


def refine(thought):
    return f"Diagnosis: It will fail.\nDecision: REFINE\nThought: {thought}"


class Script:
    """An agent whose first thoughts are given, and who acts on a thought by a table.

    Args:
        turns: (thought, action) of its first turns.
        says: prompt -> what it answers.
        acts: thought -> action.
        delay: seconds that each question takes.
    """

    def __init__(self, turns=(("push it", "push"),), says=lambda prompt: KEEP, acts=None, delay=0.0):
        self._turns, self._says, self._acts = list(turns), says, acts or {}
        self.delay, self.asked = delay, []

    async def _wait(self, what):
        self.asked.append(what)
        await asyncio.sleep(self.delay)

    async def sample(self, k):
        await self._wait(("sample", k))
        return [Sample(thought, action, payload=i) for i, (thought, action) in enumerate(self._turns[:k])]

    async def answer(self, prompt):
        await self._wait(("answer", prompt))
        return self._says(prompt)

    async def act(self, thought):
        await self._wait(("act", thought))
        return Sample(thought, self._acts[thought], payload="acted")

    @property
    def prompts(self):
        return [prompt for kind, prompt in self.asked if kind == "answer"]


class Proposals:
    """A chat model that proposes goals: `Goal:` lines, as many as the prompt asks for, in the words of the kind."""

    def __init__(self, delay=0.0, says=None):
        self.delay, self.says, self.prompts = delay, says, []

    async def __call__(self, prompts):
        self.prompts.append(list(prompts))
        await asyncio.sleep(self.delay)
        return [goals_for(prompt) if self.says is None else self.says(prompt) for prompt in prompts]


def goals_for(prompt):
    n = int(re.search(r"name (\d+), no two", prompt)[1])
    word = "open" if "to be good" in prompt else "stuck"
    return "\n".join(f"Goal: The door is {word}, way {i}." for i in range(1, n + 1))


class Reaches:
    """A goal critic: a likelihood by words of thought and goal; records its calls."""

    def __init__(self, table, delay=0.0):
        self.table, self.delay, self.asked = table, delay, []

    async def reach(self, trajectory, thought, goals):
        self.asked.append((trajectory, thought, list(goals)))
        await asyncio.sleep(self.delay)
        return np.array([self._one(thought, goal) for goal in goals])

    def _one(self, thought, goal):
        return next(p for (said, word), p in self.table.items() if said in thought and word in goal)
