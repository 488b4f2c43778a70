"""Train the critic of words relative to the goal on another policy's play: a searching expert with many errors.

python reproduce/worlds/alfworld_surrogate.py OUT.json    # a fifth of the rooms is held out

It plays the rooms on which the critic of the policy's own play is trained, as often (transfer as in AMC's table 6).
"""

from __future__ import annotations

import asyncio
import sys

import numpy as np
from amc_agents_alfworld import generate_tasks
from amc_agents_alfworld.world import HORIZON, AlfworldWorld

from amc_agents.types import Step, Task, Trajectory
from reproduce.worlds.alfworld_expert import expert_of
from reproduce.worlds.goal_value import relative
from reproduce.worlds.word_value import train

N_ROOMS, PER_ROOM = 96, 6
ERROR_RATE = 0.4


async def play(task: Task, seed: int) -> Trajectory:
    """Play an episode."""
    rng, world, steps, done = np.random.default_rng([seed, len(task.id)]), AlfworldWorld(), list[Step](), False
    await world.reset(task)
    expert = expert_of(task, rng, ERROR_RATE)
    while not done and len(steps) < HORIZON:
        expert.turn(world.random_action(rng))
        answer = await world.step(expert.last)
        expert.observe(answer.observation)
        steps.append(Step(expert.last, answer.observation, reward=answer.reward))
        done = answer.done
    await world.close()
    return Trajectory(task, tuple(steps), done=True, truncated=not done)


def main(out: str) -> None:
    """Play, and train the critic."""
    tasks = list(generate_tasks(N_ROOMS, "train"))
    plays = [
        asyncio.run(play(task, PER_ROOM * number + each))
        for number, task in enumerate(tasks)
        for each in range(PER_ROOM)
    ]
    print(f"{len(plays)} episodes, success {np.mean([play.return_ for play in plays]):.3f}")
    train([relative(play) for play in plays], out)


if __name__ == "__main__":
    main(sys.argv[1])
