"""A small trained policy of three task families ("find an animal" and the like), as an agent for `amc bench`.

A Llama of 357,408 parameters, trained from scratch on training tasks (`reproduce/worlds/train_scienceworld.py`), and
briefly on purpose, so that its runs fail often enough for a search to matter. It reads the goal and the observations,
and writes actions; it reads no other task.

    python -m amc_agents_scienceworld.find_agent 60 > tasks.jsonl
    amc bench amc_agents_scienceworld.find_agent --tasks tasks.jsonl --split all --concurrent 1 --out FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from amc_agents import text_agent
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.types import Task
from amc_agents_scienceworld.expert_agent import ScienceWorldById
from amc_agents_scienceworld.tasks import generate_tasks
from amc_agents_scienceworld.world import HORIZON

FAMILIES = ("find-animal", "find-living-thing", "find-non-living-thing")
"""The families of its tasks. It was also trained on `find-plant`, where it hardly ever succeeds."""
MODEL = Path(__file__).with_name("model")
"""A folder for `EmbeddedChatModel`."""
MAX_TOKENS = 40
"""Longest turn; an action has 20 tokens at most."""
horizon = HORIZON


def make_agent(temperature: float) -> Any:
    """Return the agent."""
    return text_agent(EmbeddedChatModel(model=str(MODEL), temperature=temperature, max_tokens=MAX_TOKENS))


def make_environment(task: Task) -> ScienceWorldById:
    """Return a fresh world."""
    return ScienceWorldById()


def shown(instruction: str) -> str:
    """Return the goal and the room, without the list of action templates, which the policy has never read."""
    return instruction[instruction.index("Goal:") :]


def main(n_tasks: int, split: str = "test") -> None:
    """Print tasks as JSON Lines."""
    for task in generate_tasks(n_tasks, split, names=FAMILIES):
        line = {"id": task.id, "instruction": shown(task.instruction), "split": "test" if split == "test" else "train"}
        print(json.dumps(line))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
