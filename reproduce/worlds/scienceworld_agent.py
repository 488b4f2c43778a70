"""Scripted policies of four task families of ScienceWorld, for `amc bench`: gold paths with errors.

An error is an action of the gold path of another training task of the same family: a plausible action in the wrong
place. The policy then goes on with its own path and does not repair anything.

    python reproduce/worlds/scienceworld_agent.py test 90 > tasks.jsonl
    python reproduce/worlds/scienceworld_agent.py gold tasks.jsonl    # once; writes gold_paths.json
    amc bench scienceworld_agent:policy --tasks tasks.jsonl --split all --concurrent 1 --out FOLDER
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from amc_agents_scienceworld import HORIZON, ScienceWorldTask, generate_tasks, gold_path, variations
from amc_agents_scienceworld.world import Episode

from amc_agents import text_agent
from amc_agents.envs import ReplayFork
from amc_agents.testing import noisy_expert
from amc_agents.types import Task, TimeStep

FAMILIES = ("find-animal", "find-living-thing", "find-non-living-thing", "find-plant")
"""Each has 150 training, 75 development and 75 test tasks, with gold paths of 3 to 16 actions."""
GOLD = Path(__file__).with_name("gold_paths.json")
"""Gold paths by family and variation: the engine needs a second for each, in every process."""
EVERY = 5
"""The errors come from the gold paths of every fifth training task."""


@lru_cache(maxsize=1)
def recorded_paths() -> dict[str, dict[str, list[str]]]:
    """Return the recorded gold paths: family -> variation -> actions."""
    paths: dict[str, dict[str, list[str]]] = json.loads(GOLD.read_text(encoding="utf-8"))
    return paths


@lru_cache(maxsize=len(FAMILIES))
def mistakes(name: str) -> list[list[str]]:
    """Return the paths that errors are drawn from."""
    return [recorded_paths()[name][str(number)] for number in variations(name)["train"][::EVERY]]


class MistakenEpisode(Episode):
    """An episode whose random actions are those of other tasks' gold paths."""

    async def reset(self, task: Task) -> TimeStep:
        """Start the task of an id, as in a file of tasks."""
        _, name, variation = task.id.split("/")
        return await super().reset(Task(task.id, task.instruction, ScienceWorldTask(name, int(variation))))

    def expert_action(self) -> str:
        """Return the next action of the gold path, as the world does, from the recorded path if there is one."""
        gold = recorded_paths()[self._payload.name].get(str(self._payload.variation))
        if gold is None:
            return super().expert_action()
        done = 0
        for action in self._actions:
            done += done < len(gold) and action == gold[done]
        return gold[done] if done < len(gold) else "look around"

    def random_action(self, rng: np.random.Generator) -> str:
        """Draw an action from a recorded path. The engine's own list of valid actions takes 0.1 s."""
        paths = mistakes(self._payload.name)
        path = paths[int(rng.integers(len(paths)))]
        return path[int(rng.integers(len(path)))]


@dataclass(frozen=True)
class GoldPolicy:
    """The gold path with errors at a rate. No model is involved, so the temperature is unused."""

    error_rate: float
    horizon: int = HORIZON

    def make_agent(self, temperature: float) -> Any:
        """Return the agent."""
        return text_agent(noisy_expert(self.error_rate))

    def make_environment(self, task: Task) -> ReplayFork:
        """Return a fresh world."""
        return ReplayFork(MistakenEpisode)


policy = GoldPolicy(0.45)
"""The policy that is measured."""
surrogate = GoldPolicy(0.25)
"""A better policy, whose play trains a value model for the other one."""


def write_gold(tasks: str) -> None:
    """Record the gold paths that errors are drawn from, and those of the tasks of a file."""
    paths = recorded_paths() if GOLD.is_file() else {name: {} for name in FAMILIES}
    wanted = [(name, number) for name in FAMILIES for number in variations(name)["train"][::EVERY]]
    for line in Path(tasks).read_text(encoding="utf-8").splitlines():
        _, name, number = json.loads(line)["id"].split("/")
        wanted.append((name, int(number)))
    for name, number in wanted:
        if str(number) not in paths.setdefault(name, {}):
            paths[name][str(number)] = list(gold_path(name, number))
    GOLD.write_text(json.dumps(paths, indent=0) + "\n", encoding="utf-8")


def print_tasks(split: str, n_tasks: int, first: int = 0, *names: str) -> None:
    """Print tasks as JSON Lines, of all families or of those named."""
    for task in generate_tasks(n_tasks, split, first, names=names or FAMILIES):
        # The list of action templates is left out: it is the same in all tasks, and only the critic reads this text.
        goal = task.instruction[task.instruction.index("Goal:") :]
        print(json.dumps({"id": task.id, "instruction": goal, "split": "test" if split == "test" else "train"}))


if __name__ == "__main__":
    if sys.argv[1] == "gold":
        write_gold(sys.argv[2])
    else:
        wanted, *others = sys.argv[2:]
        print_tasks(sys.argv[1], int(wanted), int(others[0]) if others else 0, *others[1:])
