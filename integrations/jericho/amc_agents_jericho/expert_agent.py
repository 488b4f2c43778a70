"""The scripted expert of the generated games, with errors, as an agent for `amc bench`. It is no language model.

python -m amc_agents_jericho.expert_agent 100 > tasks.jsonl
amc bench amc_agents_jericho.expert_agent --tasks tasks.jsonl --split all --out FOLDER
"""

from __future__ import annotations

import json
import sys
from typing import Any

from amc_agents import text_agent
from amc_agents.errors import ConfigurationError
from amc_agents.testing import noisy_expert
from amc_agents.types import Task, TimeStep
from amc_agents_jericho.tasks import generate_tasks
from amc_agents_jericho.world import JerichoWorld

ERROR_RATE = 0.5
"""Probability that a command is drawn at random."""
horizon = 24  # Shorter than the world's 40 steps, so that errors cost successes.


class KeepById(JerichoWorld):
    """A world whose tasks are named by id, as in a file of tasks."""

    async def reset(self, task: Task) -> TimeStep:
        """Start the generated game of the task's id."""
        return await super().reset(task_of(task.id))


def make_agent(temperature: float) -> Any:
    """Return the agent. The temperature is unused: a scripted expert has none."""
    return text_agent(noisy_expert(ERROR_RATE))


def make_environment(task: Task) -> KeepById:
    """Return a fresh world."""
    return KeepById()


def task_of(name: str) -> Task:
    """Restore a generated task from its id.

    Raises:
        ConfigurationError: the id is not that of a generated game.
    """
    match name.split("/"):
        case ["jericho-keep", split, number] if number.isdecimal():
            return next(generate_tasks(1, split, int(number)))
    raise ConfigurationError(f"expected the id of a generated game such as jericho-keep/test/0, got {name!r}")


def main(n_tasks: int, split: str = "test") -> None:
    """Print tasks as JSON Lines."""
    for task in generate_tasks(n_tasks, split):
        print(json.dumps({"id": task.id, "instruction": task.instruction, "split": split}))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
