"""Crafting tasks with other names for their items: official recipes for a policy that knows the generated books' names.

A small policy has one token for each item's name and knows no others. The recipes of an official task, their amounts
and their order stay as they are; each item that is made gets a name of `generate.CRAFTED`, each that is fetched one of
`generate.RAW`, drawn by the task's own number and a seed. A tag (a class of items that stand for each other) is told by
names alone, so a recipe that asks for one asks for the item of it that is easiest to make.
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
from amc_agents.types import Task


def renamed_tasks(path: str | Path, n_tasks: int, split: str = "test", first: int = 0) -> list[Task]:
    """Official tasks of a split, in its file's order, renamed.

    Args:
        path: as for `load_recipes`.
        n_tasks: how many.
        split: "train" or "test".
        first: index of the first within the split.

    Raises:
        ConfigurationError: the split is another, or has fewer tasks.
    """
    if split not in ("train", "test"):
        raise ConfigurationError(f'the official tasks have the splits "train" and "test", and not {split!r}')
    found = official_tasks(path, "train" if split == "train" else "test")
    if first + n_tasks > len(found):
        raise ConfigurationError(
            f"split {split!r} has {len(found)} tasks, and {n_tasks} from number {first} were asked for"
        )
    return [renamed(task) for task in found[first : first + n_tasks]]


def renamed(task: Task, seed: int = 0) -> Task:
    """The same task under other names; its world knows the recipes that the text lists and no others.

    Args:
        task: an official task.
        seed: of the names; one task under many names teaches a policy to read them.

    Raises:
        ConfigurationError: it has more different items than there are names.
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
                f"{task.id} has {len(items)} items of a kind for which there are {len(known)} names"
            )
        names |= dict(zip(items, rng.permutation(known).tolist(), strict=False))
    ways = [
        replace(way, item=names[way.item], inputs=tuple((names[name], count) for name, count in way.inputs))
        for way in listed
    ]
    shown, goal = RecipeBook(tuple(ways)), names[task.payload.goal]
    # The world's book is in the official order, by which the planner chooses among ways of one depth.
    position = {str(way): index for index, way in enumerate(book.recipes)}
    order = sorted(range(len(ways)), key=lambda index: position[str(parsed[index])])
    played = RecipeBook(tuple(ways[index] for index in order))
    steps = plan(played, goal)
    assert steps is not None, task.id
    return Task(
        f"{task.id}/renamed", instruction(shown, goal), CraftingTask(goal, played, len(steps), task.payload.depth)
    )
