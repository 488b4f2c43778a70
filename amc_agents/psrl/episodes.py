"""An agent that lives over many episodes and learns between them, and how it plays one."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from amc_agents.types import Environment, Step, Task, Trajectory


class EpisodicAgent(Protocol):
    """Plays episode after episode in worlds of one kind: what it has learnt is its own business."""

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """A new episode: here a hypothesis is drawn. All luck of the episode comes from `rng`."""
        ...

    async def act(self, trajectory: Trajectory) -> Step:
        """Thought and action in the state that the trajectory has led to; observation and reward are left empty."""
        ...

    async def observe(self, trajectory: Trajectory) -> None:
        """What the last action led to: here a posterior is updated step by step."""
        ...

    async def end(self, trajectory: Trajectory) -> None:
        """The episode is over, by the world or by its horizon: here a posterior is updated once per episode."""
        ...


async def play_episode(
    world: Environment, task: Task, agent: EpisodicAgent, rng: np.random.Generator, *, horizon: int
) -> Trajectory:
    """One episode in a world, from its reset to its end or to `horizon` steps.

    The task's instruction is what the agent has seen before its first step.
    """
    await world.reset(task)
    trajectory = Trajectory(task)
    await agent.begin(task, rng)
    while not trajectory.done:
        step = await agent.act(trajectory)
        answer = await world.step(step.action)
        cut = not answer.done and len(trajectory.steps) + 1 >= horizon
        told = Step(step.action, answer.observation, step.thought, answer.reward)
        trajectory = trajectory.extended(told, done=answer.done or cut, truncated=answer.truncated or cut)
        await agent.observe(trajectory)
    await agent.end(trajectory)
    return trajectory
