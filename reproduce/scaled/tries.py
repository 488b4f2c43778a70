"""Independent tries of many tasks, sampled in common batches: twice as fast as a run of `amc` for each task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from amc_agents.messages import split_turn
from amc_agents.types import Environment, FloatArray, Step, Task, Trajectory
from reproduce.beyond.play import MAX_TOKENS, Policy, Tokens

_Waiting = tuple[list[Tokens], FloatArray, asyncio.Future[list[str]]]


class Tries:
    """Plays tasks, as `collect(play=...)` wants it. The tries of a task depend on its seed only, not on the batches.

    Args:
        policy: samples turns.
        temperature: of the policy.
        make: creates a world.
        n: tries per task.
        horizon: maximum number of steps.
    """

    def __init__(
        self, policy: Policy, temperature: float, make: Callable[[], Environment], n: int, horizon: int
    ) -> None:
        self._policy, self._temperature, self._make, self._n, self._horizon = policy, temperature, make, n, horizon
        self._playing = 0
        self._waiting: list[_Waiting] = []

    async def __call__(self, task: Task, seed: int) -> Sequence[Trajectory]:
        """Play a task n times."""
        self._playing += 1
        try:
            return await self._played(task, np.random.default_rng(seed))
        finally:
            self._playing -= 1
            self._sample_if_all_wait()

    async def _played(self, task: Task, rng: np.random.Generator) -> list[Trajectory]:
        worlds = [self._make() for _ in range(self._n)]
        for each in worlds:
            await each.reset(task)
        tries = [Trajectory(task)] * self._n
        prompts = [self._policy.opening(task.instruction)] * self._n
        while live := [index for index, each in enumerate(tries) if not each.done]:
            turns = await self._turns([prompts[index] for index in live], rng)
            for index, turn in zip(live, turns, strict=True):
                thought, action = split_turn(turn)
                answer = await worlds[index].step(action)
                cut = not answer.done and len(tries[index].steps) + 1 >= self._horizon
                step = Step(action, answer.observation, thought, answer.reward)
                tries[index] = tries[index].extended(step, done=answer.done or cut, truncated=cut)
                prompts[index] = self._policy.extended(prompts[index], turn, answer.observation)
        return tries

    async def _turns(self, prompts: list[Tokens], rng: np.random.Generator) -> list[str]:
        sampled: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting.append((prompts, rng.random((len(prompts), MAX_TOKENS)), sampled))
        self._sample_if_all_wait()
        return await sampled

    def _sample_if_all_wait(self) -> None:
        if not self._waiting or len(self._waiting) < self._playing:
            return
        waiting, self._waiting = self._waiting, []
        prompts = [prompt for of_task, _, _ in waiting for prompt in of_task]
        uniforms = np.concatenate([of_task for _, of_task, _ in waiting])
        heat = np.full(len(prompts), self._temperature)
        said, _ = self._policy.said(prompts, lambda rows, number: uniforms[rows, number], heat)
        turns = iter([self._policy.decode(tokens) for tokens in said])
        for of_task, _, sampled in waiting:
            sampled.set_result([next(turns) for _ in of_task])
