"""Generate crafting tasks from a seed: small recipe books of any depth with distractors, in disjoint splits.

All books share the same item names, but recipes are drawn for each task, so an agent must read them. Books of
different splits come from different random streams and never coincide.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np

from amc_agents.envs.crafting.planner import plan
from amc_agents.envs.crafting.recipes import Recipe, RecipeBook
from amc_agents.envs.crafting.world import CraftingTask
from amc_agents.types import Task

MATERIALS = (
    "oak", "birch", "iron", "copper", "golden", "stone", "bamboo", "amber", "cedar",
    "quartz", "leather", "marble", "silver", "crystal", "coral", "pine", "bronze", "jade",
)  # fmt: skip
SHAPES = ("gate", "rod", "plate", "frame", "hinge", "panel", "lamp", "wheel", "crate", "chain")
CRAFTED = tuple(f"{material} {shape}" for material in MATERIALS for shape in SHAPES)
"""Names of crafted items. Many share a word, so that distractors resemble needed items."""
RAW = (
    "clay", "flint", "feather", "string", "bone", "coal", "sand", "gravel", "wheat", "sugar", "kelp", "ink",
    "wax", "moss", "reed", "resin", "salt", "sulfur", "ash", "bark", "berry", "cactus", "chalk", "cotton",
    "fern", "flax", "fur", "glue", "grass", "hemp", "honey", "horn", "ivy", "lime", "mud", "nut",
    "oil", "pearl", "petal", "pollen", "root", "scale", "seed", "shell", "silk", "slate", "straw", "thorn",
)  # fmt: skip
"""Names of items that can only be fetched."""


def generate_task(
    seed: int,
    split: str = "train",
    *,
    depth: int | None = None,
    optimal_steps: tuple[int, int] = (2, 14),
) -> Task:
    """Generate one crafting task, deterministically from the arguments.

    Args:
        seed: any non-negative integer.
        split: name of the random stream, such as "train" or "test"; streams share no book.
        depth: crafting levels below the goal; None: drawn from 1 to 4.
        optimal_steps: range of the planner's number of actions, both ends included.

    Raises:
        ValueError: no book of this depth has a number of steps in the range.
    """
    low, high = optimal_steps
    rng = np.random.default_rng([zlib.crc32(split.encode()), seed])
    for _ in range(2000):
        level = int(rng.integers(1, 5)) if depth is None else depth
        goal, book = _draw_book(rng, level)
        steps = plan(book, goal)
        if steps is not None and low <= len(steps) <= high:
            payload = CraftingTask(goal, book, len(steps), level)
            return Task(f"crafting/{split}/{seed}", instruction(book, goal), payload)
    raise ValueError(f"no book of depth {depth} with {low} to {high} optimal steps: widen the range")


def generate_tasks(
    n_tasks: int, split: str = "train", *, first_seed: int = 0, optimal_steps: tuple[int, int] = (2, 14)
) -> Iterator[Task]:
    """Generate `n_tasks` tasks with consecutive seeds."""
    for seed in range(first_seed, first_seed + n_tasks):
        yield generate_task(seed, split, optimal_steps=optimal_steps)


def instruction(book: RecipeBook, goal: str) -> str:
    """Format the first observation of a task: the recipes, then the goal."""
    listed = "\n".join(str(recipe) for recipe in book.recipes)
    return f"Crafting commands:\n{listed}\n\nGoal: craft {goal}."


def _draw_book(rng: np.random.Generator, depth: int) -> tuple[str, RecipeBook]:
    crafted = iter(rng.permutation(CRAFTED).tolist())
    raw = rng.permutation(RAW)[:12].tolist()
    goal = str(next(crafted))
    recipes: list[Recipe] = []
    draw_recipe(rng, goal, depth, crafted, raw, recipes)
    recipes += draw_distractors(rng, recipes, raw)
    order = rng.permutation(len(recipes))
    return goal, RecipeBook(tuple(recipes[i] for i in order))


def draw_recipe(
    rng: np.random.Generator, item: str, depth: int, crafted: Iterator[str], raw: list[str], recipes: list[Recipe]
) -> None:
    """Draw a recipe for `item` with all recipes below it, and append them to `recipes`."""
    # One input of a recipe of depth d has depth d - 1; the others are mostly raw.
    n_inputs = int(rng.choice([1, 2, 3], p=[0.25, 0.5, 0.25]))
    chosen = iter(rng.permutation(raw)[:n_inputs].tolist())
    inputs: list[tuple[str, int]] = []
    for position in range(n_inputs):
        if position == 0 and depth > 1:
            below = depth - 1
        else:
            below = int(rng.integers(1, depth)) if depth > 1 and rng.random() < 0.3 else 0
        if below == 0:
            inputs.append((str(next(chosen)), int(rng.choice([1, 2, 3, 4], p=[0.4, 0.3, 0.2, 0.1]))))
            continue
        made = str(next(crafted))
        draw_recipe(rng, made, below, crafted, raw, recipes)
        inputs.append((made, int(rng.choice([1, 2], p=[0.75, 0.25]))))
    shuffled = tuple(inputs[i] for i in rng.permutation(n_inputs))
    recipes.append(Recipe(item, int(rng.choice([1, 2, 4], p=[0.7, 0.2, 0.1])), shuffled))


def draw_distractors(rng: np.random.Generator, recipes: list[Recipe], raw: list[str]) -> list[Recipe]:
    """Draw 3 to 5 recipes of items that the goal does not need."""
    # A distractor shares a word with an item of the tree, and often an input with its recipe.
    taken = {recipe.item for recipe in recipes}
    distractors: list[Recipe] = []
    for _ in range(int(rng.integers(3, 6))):
        like = recipes[int(rng.integers(len(recipes)))]
        words = set(like.item.split())
        names = [name for name in CRAFTED if name not in taken and words & set(name.split())]
        item = names[int(rng.integers(len(names)))]
        taken.add(item)
        shared = like.inputs[int(rng.integers(len(like.inputs)))][0]
        others = [name for name in raw if name != shared]
        first = shared if rng.random() < 0.7 else others.pop(int(rng.integers(len(others))))
        names_used = [first, *rng.permutation(others)[: int(rng.integers(0, 2))].tolist()]
        inputs = tuple((str(name), int(rng.integers(1, 4))) for name in names_used)
        distractors.append(Recipe(item, int(rng.choice([1, 2])), inputs))
    return distractors
