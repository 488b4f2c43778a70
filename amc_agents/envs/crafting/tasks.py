"""Tasks of the crafting world: a planner, tasks generated from a seed, and the text of a task.

The planner is stateless: it returns the next useful action from any inventory. Generated tasks have small recipe books
of any depth with distractors. All books share the same item names, but recipes are drawn for each task, so an agent
must read them. Books of different splits come from different random streams and never coincide.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from amc_agents.envs.crafting.world import CraftingTask, Recipe, RecipeBook
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task


@dataclass(frozen=True, slots=True)
class Move:
    """The planner's next action, and the recipe that it is for."""

    subgoal: Recipe
    """The current recipe, with its tags replaced by items."""
    fetch: tuple[str, int] | None
    """(item, count) to fetch; None: the recipe can be crafted now."""

    @property
    def action(self) -> str:
        """The action as text."""
        if self.fetch is None:
            return str(self.subgoal)
        item, count = self.fetch
        return f"get {count} {item}"


def next_move(book: RecipeBook, goal: str, inventory: Mapping[str, int]) -> Move | None:
    """The next action towards crafting one `goal`, or None if it cannot be crafted.

    The planner follows the easiest recipe. The first missing input is fetched if it is raw, and crafted recursively
    otherwise. For a tag, the planner prefers an item in the inventory.
    """
    recipe = book.easiest_way.get(goal)
    if recipe is None:
        return None
    inputs = concrete_inputs(book, recipe, inventory)
    subgoal = recipe if inputs == recipe.inputs else replace(recipe, inputs=inputs)
    for item, count in inputs:
        missing = count - inventory.get(item, 0)
        if missing > 0:
            return Move(subgoal, (item, missing)) if item in book.raw else next_move(book, item, inventory)
    return Move(subgoal, None)


def plan(
    book: RecipeBook, goal: str, *, inventory: Mapping[str, int] | None = None, limit: int = 200
) -> list[str] | None:
    """The planner's actions from an inventory (None: empty) to the goal; None if `limit` actions do not suffice."""
    inventory = dict(inventory or {})
    actions: list[str] = []
    while len(actions) < limit:
        move = next_move(book, goal, inventory)
        if move is None:
            return None
        actions.append(move.action)
        if move.fetch is not None:
            item, count = move.fetch
            inventory[item] = inventory.get(item, 0) + count
            continue
        for name, count in move.subgoal.inputs:
            inventory[name] -= count
        inventory[move.subgoal.item] = inventory.get(move.subgoal.item, 0) + move.subgoal.count
        if move.subgoal.item == goal:
            return actions
    return None


def concrete_inputs(book: RecipeBook, recipe: Recipe, inventory: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Replace each tag by an item: one of which the inventory has enough, or else the easiest to craft."""
    # A recipe takes the whole count of a tag from a single item.
    inputs: list[tuple[str, int]] = []
    for name, count in recipe.inputs:
        item = name
        if name in book.tags:
            carried = (held for held, number in inventory.items() if number >= count and book.accepts(name, held))
            item = next(carried, book.easiest_way[name].item)
        inputs.append((item, count))
    return tuple(inputs)


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
