"""Scripted policies of generated TextWorld games, for `amc bench`: TextWorld's own solution with random commands.

    python reproduce/worlds/textworld_agent.py test 100 > tasks.jsonl     # makes the games, too
    amc bench textworld_agent:policy --tasks tasks.jsonl --split all --out FOLDER

An error is a command that TextWorld lists as admissible. The policy then goes on from the state that it is in.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

from amc_agents_textworld import HORIZON, TextWorldTask, TextWorldWorld, generate_tasks, generated_game
from amc_agents_textworld.tasks import SEEDS_PER_SPLIT, SPLITS

from amc_agents import text_agent
from amc_agents.testing import noisy_expert
from amc_agents.types import Task, TimeStep


class TextWorldById(TextWorldWorld):
    """A world whose tasks are named by id, as in a file of tasks."""

    async def reset(self, task: Task) -> TimeStep:
        """Start the game of the id."""
        _, split, number = task.id.split("/")
        story = generated_game(1 + SPLITS.index(split) * SEEDS_PER_SPLIT + int(number))
        return await super().reset(Task(task.id, task.instruction, TextWorldTask(str(story))))


@dataclass(frozen=True)
class ScriptedPolicy:
    """The solution with errors at a rate. No model is involved, so the temperature is unused."""

    error_rate: float
    horizon: int = HORIZON

    def make_agent(self, temperature: float) -> Any:
        """Return the agent."""
        return text_agent(noisy_expert(self.error_rate))

    def make_environment(self, task: Task) -> TextWorldById:
        """Return a fresh world."""
        return TextWorldById()


policy = ScriptedPolicy(0.8)
"""The policy that is measured."""
surrogate = ScriptedPolicy(0.6)
"""A better policy, whose play trains a value model for the other one."""


def print_tasks(split: str, n_tasks: int, first: int = 0) -> None:
    """Make games, and print their tasks as JSON Lines."""
    for task in generate_tasks(n_tasks, split, first):
        print(json.dumps({"id": task.id, "instruction": task.instruction, "split": split}), flush=True)


if __name__ == "__main__":
    print_tasks(sys.argv[1], *map(int, sys.argv[2:]))
