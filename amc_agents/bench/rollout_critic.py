"""V of a policy at a state, estimated by rollouts in the true world: an oracle critic for upper bounds."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence

import numpy as np
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from amc_agents.critics.render import turn
from amc_agents.messages import turn_of
from amc_agents.models.seeding import use_rng
from amc_agents.types import Environment, FloatArray, Task, Trajectory


class RolloutCritic:
    """Estimates the expected whole return of a state under the policy, the target of a value model (eq. 7).

    It repeats the trajectory's actions in a world of its own, which must be deterministic, and lets the policy continue
    several times. The mean return is unbiased; its standard error is at most .5 / sqrt(n_rollouts) for returns
    of 0 and 1. Every value costs `n_rollouts` continuations.

    Args:
        policy: the chat model that acts, with its temperature.
        make: creates a world.
        task_of: restores a task, with its payload, from its instruction.
        n_rollouts: continuations per state.
        horizon: maximum number of steps of an episode.
        seed: seed of the continuations.
    """

    predicts = "return"

    def __init__(
        self,
        policy: BaseChatModel,
        make: Callable[[], Environment],
        task_of: Callable[[str], Task],
        *,
        n_rollouts: int = 16,
        horizon: int = 20,
        seed: int = 0,
    ) -> None:
        self._policy, self._make, self._task_of = policy, make, task_of
        self._n_rollouts, self._horizon, self._seed = n_rollouts, horizon, seed
        self._known: dict[tuple[str, tuple[str, ...]], float] = {}

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """Return `[N]` mean returns. States with the same dialogue share their continuations."""
        states = {_dialogue(trajectory): trajectory for trajectory in trajectories}
        new = {key: trajectory for key, trajectory in states.items() if key not in self._known}
        self._known |= zip(new, await asyncio.gather(*map(self._value, new.values())), strict=True)
        return np.array([self._known[_dialogue(trajectory)] for trajectory in trajectories], dtype=np.float64)

    async def _value(self, trajectory: Trajectory) -> float:
        world, task = self._make(), self._task_of(trajectory.task.instruction)
        messages: list[BaseMessage] = [HumanMessage((await world.reset(task)).observation)]
        past, done = 0.0, False
        for step in trajectory.steps:
            answer = await world.step(step.action)
            messages += [AIMessage(turn(step)), HumanMessage(answer.observation)]
            past, done = past + answer.reward, answer.done
        left = 0 if done else self._horizon - len(trajectory.steps)
        if left <= 0:
            return past
        seeds = np.random.SeedSequence([self._seed, zlib.crc32(repr(_dialogue(trajectory)).encode())])
        rollouts = [self._rollout(world, messages, left, child) for child in seeds.spawn(self._n_rollouts)]
        return past + float(np.mean(await asyncio.gather(*rollouts)))

    async def _rollout(
        self, origin: Environment, messages: Sequence[BaseMessage], left: int, seeds: np.random.SeedSequence
    ) -> float:
        """Return the rewards of one continuation."""
        rng, rewards, dialogue = np.random.default_rng(seeds), 0.0, list(messages)
        world = await origin.fork(int(rng.integers(2**31)))
        with use_rng(rng):
            for _ in range(left):
                message = await self._policy.ainvoke(dialogue)
                answer = await world.step(turn_of(message)[1])
                rewards += answer.reward
                dialogue += [message, HumanMessage(answer.observation)]
                if answer.done:
                    break
        await world.close()
        return rewards


def _dialogue(trajectory: Trajectory) -> tuple[str, tuple[str, ...]]:
    return trajectory.task.instruction, tuple(turn(step) for step in trajectory.steps)
