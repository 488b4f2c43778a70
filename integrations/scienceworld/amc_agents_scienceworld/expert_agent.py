"""The scripted expert of ScienceWorld, with errors, as an agent for `amc bench`. It is no language model.

It plays the engine's gold path; an error is a random valid action, after which it goes on with the path.

    python -m amc_agents_scienceworld.expert_agent 50 > tasks.jsonl
    amc bench amc_agents_scienceworld.expert_agent --tasks tasks.jsonl --split all --concurrent 1 --out FOLDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

from amc_agents import text_agent
from amc_agents.testing import noisy_expert
from amc_agents.types import Task, TimeStep
from amc_agents_scienceworld.tasks import SHORT_TASKS, generate_tasks, payload_of
from amc_agents_scienceworld.world import HORIZON, ScienceWorld

ERROR_RATE = 0.15
"""Probability that an action is drawn at random."""
horizon = HORIZON


class ScienceWorldById(ScienceWorld):
    """A world whose tasks are named by id, as in a file of tasks."""

    async def reset(self, task: Task) -> TimeStep:
        """Start the task of the id."""
        return await super().reset(Task(task.id, task.instruction, payload_of(task.id)))


def make_agent(temperature: float) -> Any:
    """Return the agent. The temperature is unused: a scripted expert has none."""
    return text_agent(noisy_expert(ERROR_RATE))


def make_environment(task: Task) -> ScienceWorldById:
    """Return a fresh world."""
    return ScienceWorldById()


def main(n_tasks: int, split: str = "test") -> None:
    """Print tasks that can be solved within the horizon, as JSON Lines."""
    for task in generate_tasks(n_tasks, split, names=SHORT_TASKS):
        line = {"id": task.id, "instruction": task.instruction, "split": "train" if split == "train" else "test"}
        print(json.dumps(line))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
