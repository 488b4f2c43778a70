"""The official TextCraft: its recipe files as a `RecipeBook`, the paper's tasks, and the same tasks with other names.

The rules are those of the public environment. Files are read in the order of their names, so that every machine gets
the same book. Task numbers are rows of the published depth table and do not depend on the order of a directory.

A small policy has one token per item name and no others. `renamed` gives each crafted item a name of `CRAFTED`, and
each fetched item a name of `RAW`, drawn with the task's id and a seed. Recipes keep their counts and their order. Tags
cannot be renamed, so a tag is replaced by the item that is easiest to craft.
"""

from __future__ import annotations

import csv
import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from amc_agents.envs.crafting.tasks import CRAFTED, RAW, concrete_inputs, instruction, parse_instruction, plan
from amc_agents.envs.crafting.world import CraftingTask, Recipe, RecipeBook, item_name
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task

MAX_DISTRACTORS = 10
"""Maximum number of recipes that a task lists besides those it needs."""
DEPTHS_FILE = "textcraft_crafting_depths.csv"
"""Rows `item id <tab> depth`; a task's number is its row, counted from 0."""

_CRAFTING = {"minecraft:crafting_shaped": "shaped", "minecraft:crafting_shapeless": "shapeless"}


def load_recipes(path: str | Path) -> RecipeBook:
    """Read TextCraft's recipe files into a book.

    Only shaped and shapeless recipes are read, with the first of alternative inputs. Recipes whose single input is a
    `_block` are skipped, as are recipes that would form a cycle with recipes read before. A recipe's group is the tag
    of its output, unless it equals the output. A tag without a craftable item is an ordinary item that can be fetched.

    Args:
        path: a folder with one JSON file per recipe, a JSON file (name -> recipe), or the folder of such a file.

    Raises:
        ConfigurationError: no recipes exist at the path, or a recipe cannot be parsed.
    """
    recipes: list[Recipe] = []
    tag_of: dict[str, str] = {}
    known: dict[str, None] = {}
    below: dict[str, set[str]] = {}
    for name, entry in _entries(Path(path)):
        if entry.get("type") not in _CRAFTING:
            continue
        recipe, tags = _parse(name, entry)
        known.update(dict.fromkeys([recipe.item, *(used for used, _ in recipe.inputs if used not in tags)]))
        if len(recipe.inputs) == 1 and recipe.inputs[0][0].endswith(" block"):
            continue
        group = item_name(entry.get("group", ""))
        if group and group != recipe.item:
            tag_of[recipe.item] = group
        own = below.setdefault(recipe.item, set())
        if any(recipe.item in below.get(used, ()) for used, _ in recipe.inputs):
            continue
        recipes.append(recipe)
        for used, _ in recipe.inputs:
            own |= {used, *below.get(used, ())}
    if not recipes:
        raise ConfigurationError(f"no crafting recipes at {path}: expected a folder or a JSON file of recipes")
    names = [*known, *tag_of.values(), *(used for recipe in recipes for used, _ in recipe.inputs)]
    aliases = {name.replace(" ", "_"): name for name in names if " " in name}
    return RecipeBook(tuple(recipes), tag_of, frozenset(known), aliases)


def official_tasks(
    path: str | Path, split: Literal["train", "test", "all"] = "test", *, depths: Collection[int] | None = None
) -> list[Task]:
    """Load the paper's tasks, in the order of the split's file.

    A task lists every recipe that its goal may need and up to `MAX_DISTRACTORS` others with the same inputs. They are
    drawn and shuffled with the task's id as the seed. The world has the whole book.

    Args:
        path: as for `load_recipes`; the published tables are in that folder or in its parent.
        split: "train" or "test" (the published ids), or "all" (every row of the depth table).
        depths: keep only tasks of these depths; None: all.

    Raises:
        ConfigurationError: a table is missing or inconsistent with the recipes.
    """
    book = load_recipes(path)
    table = _table(Path(path), DEPTHS_FILE)
    numbers = range(len(table)) if split == "all" else [int(row[0]) for row in _table(Path(path), _ids_file(split))]
    chosen = [number for number in numbers if depths is None or int(table[number][1]) in depths]
    return [_official_task(book, number, item_name(table[number][0]), int(table[number][1])) for number in chosen]


def needed_recipes(book: RecipeBook, goal: str) -> tuple[Recipe, ...]:
    """Every recipe that crafting `goal` may need, each once, in breadth-first order."""
    needed: dict[Recipe, None] = {}
    pending = [goal]
    for name in pending:
        for recipe in book.ways(name):
            if recipe not in needed:
                needed[recipe] = None
                pending += [used for used, _ in recipe.inputs]
    return tuple(needed)


def _official_task(book: RecipeBook, number: int, goal: str, depth: int) -> Task:
    steps = plan(book, goal)
    if steps is None or book.depth(goal) != depth:
        raise ConfigurationError(
            f"row {number} of {DEPTHS_FILE} gives {quoted(goal)} the depth {depth}, but with these recipes it "
            f"{f'has the depth {book.depth(goal)}' if steps else 'cannot be crafted'}: use the table of these recipes"
        )
    task_id = f"textcraft/{number}"
    rng = np.random.default_rng(zlib.crc32(task_id.encode()))
    needed = needed_recipes(book, goal)
    used = {name for recipe in needed for name, _ in recipe.inputs}
    related = dict.fromkeys(way for way in book.recipes if any(name in used for name, _ in way.inputs))
    others = [way for way in related if way not in needed]
    drawn = rng.permutation(len(others))[:MAX_DISTRACTORS]
    listed = [*needed, *(others[i] for i in drawn)]
    text = instruction(RecipeBook(tuple(listed[i] for i in rng.permutation(len(listed)))), goal)
    return Task(task_id, text, CraftingTask(goal, book, len(steps), depth))


def _entries(path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    if path.is_dir() and (path / "recipes.json").is_file():
        path = path / "recipes.json"
    if path.is_dir():
        entries = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in path.glob("*.json")}
    elif path.is_file():
        entries = json.loads(path.read_text(encoding="utf-8"))
    else:
        raise ConfigurationError(f"no recipes at {path}: expected a folder or a JSON file of recipes")
    # `x_from_y` is an alternative recipe for x and comes after the plain names: of two recipes that undo each other
    # (ingot and nugget), the plain one is kept. This order reproduces the published depth table exactly.
    return sorted(entries.items(), key=lambda entry: ("_from_" in entry[0], entry[0]))


def _parse(name: str, entry: Mapping[str, Any]) -> tuple[Recipe, set[str]]:
    # Also returns the inputs that are tags, which are not items.
    try:
        if _CRAFTING[entry["type"]] == "shaped":
            pattern = "".join(entry["pattern"])
            inputs = [(_first(options), pattern.count(key)) for key, options in entry["key"].items()]
        else:
            inputs = [(_first(options), 1) for options in entry["ingredients"]]
        result = entry["result"]
        output, count = (result, 1) if isinstance(result, str) else (result["item"], result.get("count", 1))
        counts: dict[str, int] = {}
        for option, number in inputs:
            used = item_name(option["item"] if "item" in option else option["tag"])
            counts[used] = counts.get(used, 0) + number
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"recipe {quoted(name)} is not a TextCraft recipe: {quoted(error)}") from error
    tags = {item_name(option["tag"]) for option, _ in inputs if "item" not in option}
    return Recipe(item_name(output), int(count), tuple(counts.items())), tags


def _first(options: Any) -> Mapping[str, str]:
    return cast("Mapping[str, str]", options[0] if isinstance(options, list) else options)


def _ids_file(split: str) -> str:
    if split not in ("train", "test"):
        raise ConfigurationError(f"split must be 'train', 'test' or 'all', got {quoted(split)}")
    return f"textcraft_{split}_ids.csv"


def _table(path: Path, file_name: str) -> list[list[str]]:
    for folder in (path, path.parent):
        if (folder / file_name).is_file():
            lines: Iterable[str] = (folder / file_name).read_text(encoding="utf-8").splitlines()
            return [row for row in csv.reader(lines, delimiter="\t") if row]
    raise ConfigurationError(f"{file_name} is neither in {path} nor in its parent folder")


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
