"""Tasks of the workshop: their text, and a generator with disjoint splits. Each has a solution and at least one trap.

A goal has two recipes, and some items below it have two as well. A trap is a recipe of an item below the
goal that can be crafted at once and rules out success: the stock that is left does not suffice, or the recipe uses the
forbidden item.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from amc_agents.envs.crafting import tasks as crafting_tasks
from amc_agents.envs.crafting.official import needed_recipes
from amc_agents.envs.crafting.tasks import CRAFTED, RAW, RULES, draw_distractors, draw_recipe, parse_recipes
from amc_agents.envs.crafting.world import Recipe, RecipeBook
from amc_agents.envs.workshop.world import Solution, WorkshopTask, solution
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task

_TEXT = re.compile(
    r"Crafting commands:\n(?P<recipes>.+?)(?:\n\nStock: (?P<stock>[^\n]+))?"
    r"\n\nGoal: craft (?P<goal>[^\n]+?)(?: without (?P<without>[^\n]+))?\.",
    re.DOTALL,
)
_COUNTED = re.compile(r"([0-9]{1,9}) (.+)")


STOCK = """\
The stock of each raw item is limited, and a crafting that no command describes destroys its ingredients. Plan ahead:
some mistakes cannot be undone."""
WITHOUT = """\
The goal names an item that you must not use in any crafting. The world does not say whether you obeyed."""


def rules_of(kind: str) -> str:
    """Explain the world of a kind ("stock", "hidden" or "both") to a chat model that was not trained for it."""
    return "\n".join([RULES, *([STOCK] if kind != "hidden" else []), *([WITHOUT] if kind != "stock" else [])])


def instruction(task: WorkshopTask) -> str:
    """Format the first observation of a task: recipes, stock, goal, and the item that must not be used."""
    stock = "" if task.stock is None else f"Stock: {_listed(task.stock)}\n\n"
    goal = task.goal if task.without is None else f"{task.goal} without {task.without}"
    recipes, _, last_line = crafting_tasks.instruction(task.book, goal).rpartition("\n")
    return f"{recipes}\n{stock}{last_line}"


def parse_instruction(text: str) -> Task:
    r"""Parse an instruction into the workshop task that it describes.

    Raises:
        ConfigurationError: the text has another format, or the task has no solution.

    >>> text = "Crafting commands:\ncraft 1 rod using 2 clay\n\nStock: 3 clay\n\nGoal: craft rod."
    >>> parse_instruction(text).payload.stock
    {'clay': 3}
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{_EXPECTED}, got {quoted(text)}")
    stock = None if match["stock"] is None else _stock(match["stock"])
    book = parse_recipes(match["recipes"])
    task = WorkshopTask(match["goal"], book, 0, book.depth(match["goal"]), stock, match["without"])
    best = solution(task)
    if best is None:
        raise ConfigurationError(
            f"the instruction's recipes and stock do not allow crafting {quoted(task.goal)} as required"
        )
    task_id = f"workshop/text/{hashlib.sha256(text.strip().encode()).hexdigest()[:12]}"
    return Task(task_id, text, replace(task, optimal_steps=best.n_steps))


def _listed(stock: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {item}" for item, count in stock.items())


def _stock(text: str) -> dict[str, int]:
    stock: dict[str, int] = {}
    for part in text.split(", "):
        entry = _COUNTED.fullmatch(part)
        if entry is None:
            raise ConfigurationError(f"expected a stock such as 'Stock: 5 clay, 2 silk', got the entry {quoted(part)}")
        stock[entry[2]] = int(entry[1])
    return stock


_EXPECTED = (
    r"expected an instruction 'Crafting commands:\n<one recipe per line>\n\nStock: <count> <item>, ...\n\n"
    r"Goal: craft <item> without <item>.', stock and the forbidden item being optional"
)
"""What `parse_instruction` reads."""


Kind = Literal["stock", "hidden", "both"]
N_RAW = 6
"""Number of raw items of a task; few, so that recipes compete for them."""
OPTIMAL_STEPS = (5, 10)
"""Default range of the planner's number of actions."""


def generate_task(
    seed: int,
    split: str = "train",
    kind: Kind = "both",
    *,
    optimal_steps: tuple[int, int] = OPTIMAL_STEPS,
    traps: int = 1,
) -> Task:
    """Generate one workshop task, deterministically from the arguments.

    Args:
        seed: any non-negative integer.
        split: name of the random stream, such as "train" or "test"; streams share no book.
        kind: "stock" (finite stock), "hidden" (hidden success) or "both".
        optimal_steps: range of the planner's number of actions, both ends included.
        traps: minimum number of traps.

    Raises:
        ValueError: no task has a number of steps in the range.
    """
    low, high = optimal_steps
    rng = np.random.default_rng([zlib.crc32(f"workshop/{kind}/{split}".encode()), seed])
    for _ in range(5000):
        drawn = _draw_task(rng, kind)
        best = None if drawn is None else solution(drawn)
        if drawn is None or best is None or not low <= best.n_steps <= high or n_traps(drawn) < traps:
            continue
        payload = replace(drawn, optimal_steps=best.n_steps)
        return Task(f"workshop/{kind}/{split}/{seed}", instruction(payload), payload)
    raise ValueError(f"no {kind} task with {low} to {high} optimal steps: widen the range")


def generate_tasks(
    n_tasks: int,
    split: str = "train",
    first: int = 0,
    *,
    kind: Kind,
    optimal_steps: tuple[int, int] = OPTIMAL_STEPS,
    traps: int = 1,
) -> Iterator[Task]:
    """Generate `n_tasks` tasks with consecutive seeds from `first`."""
    for seed in range(first, first + n_tasks):
        yield generate_task(seed, split, kind, optimal_steps=optimal_steps, traps=traps)


def n_traps(task: WorkshopTask) -> int:
    """Count the recipes of items below the goal that can be crafted at the start and rule out success."""
    return sum(_rules_out_success(task, way) for way in needed_recipes(task.book, task.goal))


def _rules_out_success(task: WorkshopTask, way: Recipe) -> bool:
    stock = task.stock
    if way.item == task.goal or any(name not in task.book.raw for name, _ in way.inputs):
        return False
    if stock is not None:
        if any(stock.get(name, 0) < count for name, count in way.inputs):
            return False
        stock = {**stock, **{name: stock[name] - count for name, count in way.inputs}}
    spoiled = any(name == task.without for name, _ in way.inputs)
    return solution(task, {way.item: way.count}, stock, spoiled=spoiled) is None


def restricted(book: RecipeBook, chosen: dict[str, Recipe]) -> RecipeBook:
    """Return the book with only the chosen recipe of each item in `chosen`."""
    return RecipeBook(tuple(way for way in book.recipes if chosen.get(way.item, way) is way))


def _draw_task(rng: np.random.Generator, kind: Kind) -> WorkshopTask | None:
    """Draw a task that has a solution, or None if the drawn book has none."""
    depth = int(rng.integers(1, 4))
    goal, book = _draw_book(rng, depth)
    task = WorkshopTask(goal, book, 0, depth)
    if kind != "stock":
        raw = sorted(book.raw)
        task = replace(task, without=raw[int(rng.integers(len(raw)))])
    intended = _intended(rng, task)
    if intended is None or kind == "hidden":
        return None if intended is None else task
    return replace(task, stock=_draw_stock(rng, book, intended))


def _draw_book(rng: np.random.Generator, depth: int) -> tuple[str, RecipeBook]:
    crafted = iter(rng.permutation(CRAFTED).tolist())
    raw = rng.permutation(RAW)[:N_RAW].tolist()
    goal = str(next(crafted))
    recipes: list[Recipe] = []
    for _ in range(2):
        draw_recipe(rng, goal, depth, crafted, raw, recipes)
    for item in [recipe.item for recipe in recipes if recipe.item != goal]:
        if rng.random() < 0.5:
            draw_recipe(rng, item, 1, crafted, raw, recipes)
    recipes += draw_distractors(rng, recipes, raw)[:2]
    return goal, RecipeBook(tuple(recipes[index] for index in rng.permutation(len(recipes))))


def _intended(rng: np.random.Generator, task: WorkshopTask) -> Solution | None:
    """Return the solution with a random recipe for each item; None if it uses the forbidden item."""
    chosen = {item: ways[int(rng.integers(len(ways)))] for item, ways in task.book.by_item.items()}
    return solution(replace(task, book=restricted(task.book, chosen)))


def _draw_stock(rng: np.random.Generator, book: RecipeBook, intended: Solution) -> dict[str, int]:
    """Draw a stock that suffices for the intended solution with little to spare, and some of all other raw items."""
    stock = {item: int(rng.integers(0, 4)) for item in sorted(book.raw)}
    for item, count in intended.fetches:
        stock[item] = count + int(rng.choice([0, 1, 2], p=[0.6, 0.3, 0.1]))
    return {item: count for item, count in stock.items() if count > 0}
