"""The protocol of agents that learn over many episodes, and the loop of one episode."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from amc_agents.types import Environment, Step, Task, Trajectory


class EpisodicAgent(Protocol):
    """Plays a sequence of episodes in worlds of one kind, and carries what it learns from one to the next."""

    async def begin(self, task: Task, rng: np.random.Generator) -> None:
        """Begin an episode, for example by drawing a hypothesis. All draws of the episode come from `rng`."""
        ...

    async def act(self, trajectory: Trajectory) -> Step:
        """Return thought and action in the trajectory's last state, without observation and reward."""
        ...

    async def observe(self, trajectory: Trajectory) -> None:
        """Process the outcome of the last action, for example by updating a posterior."""
        ...

    async def end(self, trajectory: Trajectory) -> None:
        """Process the end of the episode, for example by updating a posterior once per episode."""
        ...


async def play_episode(
    world: Environment, task: Task, agent: EpisodicAgent, rng: np.random.Generator, *, horizon: int
) -> Trajectory:
    """Play one episode, from the world's reset to its end or to `horizon` steps.

    Before its first step, the agent has seen the task's instruction.
    """
    await world.reset(task)
    trajectory = Trajectory(task)
    await agent.begin(task, rng)
    while not trajectory.done:
        step = await agent.act(trajectory)
        answer = await world.step(step.action)
        cut = not answer.done and len(trajectory.steps) + 1 >= horizon
        observed = Step(step.action, answer.observation, step.thought, answer.reward)
        trajectory = trajectory.extended(observed, done=answer.done or cut, truncated=answer.truncated or cut)
        await agent.observe(trajectory)
    await agent.end(trajectory)
    return trajectory
