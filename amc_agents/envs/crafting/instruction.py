"""Parse the text of a crafting task, and explain the world to a chat model."""

from __future__ import annotations

import hashlib
import re

from amc_agents.envs.crafting.planner import plan
from amc_agents.envs.crafting.recipes import Recipe, RecipeBook
from amc_agents.envs.crafting.world import CraftingTask
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task

RULES = """\
You craft items in a text world. Each turn, answer with one line `Thought: ...` (optional) and one line `Action: ...`.
An action is one of:
get AMOUNT ITEM
craft AMOUNT ITEM using AMOUNT ITEM, AMOUNT ITEM
inventory
Use one of the listed crafting commands word for word, with the amounts that it says; what no command makes can be
fetched with `get`."""
"""How to act, for a chat model that was not trained for the world."""
_HEAD = "Crafting commands:\n"
_GOAL = re.compile(r"\s*Goal: craft (.+)\.")
_RECIPE = re.compile(r"craft ([0-9]{1,9}) (.+?) using (.+)")
_INPUT = re.compile(r"([0-9]{1,9}) (.+)")


def parse_instruction(text: str) -> Task:
    r"""Parse an instruction into the crafting task that it describes.

    The resulting world has only the recipes that the text lists. An item is raw if a recipe uses it and none makes it.
    The text does not contain tags (classes of items), so the world has none.

    Args:
        text: `Crafting commands:\n<one recipe per line>\n\nGoal: craft <item>.`, with optional whitespace around it.

    Raises:
        ConfigurationError: the text has another format, or its recipes do not lead to the goal.

    >>> parse_instruction("Crafting commands:\ncraft 1 rod using 2 clay\n\nGoal: craft rod.").payload.optimal_steps
    2
    """
    text = "\n".join(line.rstrip() for line in text.strip().splitlines())
    recipes, _, last_line = text.removeprefix(_HEAD).rpartition("\n")
    match = _GOAL.fullmatch(last_line)
    if match is None or not recipes or not text.startswith(_HEAD):
        raise ConfigurationError(f"{_EXPECTED}, got {quoted(text)}")
    book = parse_recipes(recipes)
    goal = match[1]
    steps = plan(book, goal)
    if steps is None:
        raise ConfigurationError(f"the recipes of the instruction do not allow crafting {quoted(goal)}")
    payload = CraftingTask(goal, book, len(steps), book.depth(goal))
    return Task(f"crafting/text/{hashlib.sha256(text.encode()).hexdigest()[:12]}", text, payload)


def parse_recipes(text: str) -> RecipeBook:
    """Parse lines of recipes.

    Raises:
        ConfigurationError: a line is not a recipe.
    """
    return RecipeBook(tuple(_recipe(line) for line in text.splitlines() if line))


def _recipe(line: str) -> Recipe:
    match = _RECIPE.fullmatch(line)
    inputs = [_INPUT.fullmatch(part) for part in match[3].split(", ")] if match else [None]
    if match is None or None in inputs:
        raise ConfigurationError(
            f"expected a recipe such as 'craft 1 oak gate using 2 clay, 1 silk', got {quoted(line)}"
        )
    return Recipe(match[2], int(match[1]), tuple((part[2], int(part[1])) for part in inputs if part))


_EXPECTED = r"expected an instruction 'Crafting commands:\n<one recipe per line>\n\nGoal: craft <item>.'"
