"""Rename the items of official crafting tasks to names of the generated tasks, for policies with that vocabulary.

A small policy has one token per item name and no others. Recipes keep their counts and their order. Each crafted item
gets a name of `generate.CRAFTED`, and each fetched item a name of `generate.RAW`, drawn with the task's id and a seed.
Tags (classes of interchangeable items) cannot be renamed, so a tag is replaced by the item that is easiest to craft.
"""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from amc_agents.envs.crafting.generate import CRAFTED, RAW, instruction
from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.envs.crafting.official import official_tasks
from amc_agents.envs.crafting.planner import concrete_inputs, plan
from amc_agents.envs.crafting.recipes import RecipeBook
from amc_agents.envs.crafting.world import CraftingTask
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task


def renamed_tasks(path: str | Path, n_tasks: int, split: str = "test", first: int = 0) -> list[Task]:
    """Load official tasks of a split, in the order of its file, and rename their items.

    Args:
        path: as for `load_recipes`.
        n_tasks: number of tasks.
        split: "train" or "test".
        first: index of the first task within the split.

    Raises:
        ConfigurationError: the split does not exist, or has too few tasks.
    """
    if split not in ("train", "test"):
        raise ConfigurationError(f'split must be "train" or "test", got {quoted(split)}')
    tasks = official_tasks(path, "train" if split == "train" else "test")
    if first + n_tasks > len(tasks):
        raise ConfigurationError(
            f"split {quoted(split)} has {len(tasks)} tasks; {n_tasks} tasks from index {first} were requested"
        )
    return [renamed(task) for task in tasks[first : first + n_tasks]]


def renamed(task: Task, seed: int = 0) -> Task:
    """Rename the items of a task. Its world has only the recipes that the instruction lists.

    Args:
        task: an official task.
        seed: seed of the names; training on a task under several names teaches a policy to read them.

    Raises:
        ConfigurationError: the task has more distinct items than there are names.
    """
    book = task.payload.book
    parsed = parse_instruction(task.instruction).payload.book.recipes
    listed = [replace(way, inputs=concrete_inputs(book, way, {})) for way in parsed]
    made = dict.fromkeys(way.item for way in listed)
    fetched = dict.fromkeys(name for way in listed for name, _ in way.inputs if name not in made)
    rng = np.random.default_rng([zlib.crc32(task.id.encode()), seed])
    names: dict[str, str] = {}
    for items, known in ((made, CRAFTED), (fetched, RAW)):
        if len(items) > len(known):
            raise ConfigurationError(
                f"{task.id} has {len(items)} crafted or fetched items, but only {len(known)} names exist for them"
            )
        names |= dict(zip(items, rng.permutation(known).tolist(), strict=False))
    ways = [
        replace(way, item=names[way.item], inputs=tuple((names[name], count) for name, count in way.inputs))
        for way in listed
    ]
    shown, goal = RecipeBook(tuple(ways)), names[task.payload.goal]
    # The world keeps the official order, by which the planner chooses among recipes of equal depth.
    position = {str(way): index for index, way in enumerate(book.recipes)}
    order = sorted(range(len(ways)), key=lambda index: position[str(parsed[index])])
    played = RecipeBook(tuple(ways[index] for index in order))
    steps = plan(played, goal)
    assert steps is not None, task.id
    return Task(
        f"{task.id}/renamed", instruction(shown, goal), CraftingTask(goal, played, len(steps), task.payload.depth)
    )
