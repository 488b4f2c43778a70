"""The crafting world: recipes, and TextCraft's commands and observations for any recipe book.

Items have plain names (`oak planks`); the id of the same item is `minecraft:oak_planks`. A *tag* is a class of
interchangeable items (`planks`); an input of a recipe may be a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

from amc_agents.errors import EnvironmentStateError
from amc_agents.quoting import quoted
from amc_agents.types import Task, TimeStep

_NAMESPACE = "minecraft:"


def item_name(item_id: str) -> str:
    """`minecraft:oak_planks` -> `oak planks`."""
    return item_id.removeprefix(_NAMESPACE).replace("_", " ")


def item_id(name: str) -> str:
    """`oak planks` -> `minecraft:oak_planks`."""
    return _NAMESPACE + name.replace(" ", "_")


@dataclass(frozen=True, slots=True)
class Recipe:
    """A way to craft an item."""

    item: str
    """Name of the crafted item."""
    count: int
    """Number of items that one crafting produces."""
    inputs: tuple[tuple[str, int], ...]
    """Inputs of one crafting, in written order: (name of an item or tag, count)."""

    def __str__(self) -> str:
        """The recipe as TextCraft writes it, which is also the action that executes it."""
        return f"craft {self.count} {self.item} using {self.ingredients}"

    @property
    def ingredients(self) -> str:
        """The inputs as text: `2 oak planks, 1 stick`."""
        return ", ".join(f"{count} {name}" for name, count in self.inputs)


@dataclass(frozen=True)
class RecipeBook:
    """All recipes of a world, and the tags of its items."""

    recipes: tuple[Recipe, ...]
    tag_of: Mapping[str, str] = field(default_factory=dict)
    """Item -> its tag (in TextCraft, the recipe's group)."""
    known: frozenset[str] = frozenset()
    """Items known to exist; those without a recipe can be fetched, even if no recipe uses them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Alternative spelling -> name (`oak_planks` -> `oak planks`); the official world accepts both."""

    @cached_property
    def by_item(self) -> Mapping[str, tuple[Recipe, ...]]:
        """Item -> its recipes."""
        recipes: dict[str, list[Recipe]] = {}
        for recipe in self.recipes:
            recipes.setdefault(recipe.item, []).append(recipe)
        return {item: tuple(ways) for item, ways in recipes.items()}

    @cached_property
    def items_of(self) -> Mapping[str, tuple[str, ...]]:
        """Tag -> the craftable items that belong to it, in the book's order."""
        members: dict[str, list[str]] = {}
        for item in self.by_item:
            if item in self.tag_of:
                members.setdefault(self.tag_of[item], []).append(item)
        return {tag: tuple(items) for tag, items in members.items()}

    @cached_property
    def raw(self) -> frozenset[str]:
        """Items that can only be fetched: used or known, but without a recipe."""
        used = {name for recipe in self.recipes for name, _ in recipe.inputs}
        return frozenset((used | self.known) - self.by_item.keys() - self.tags)

    @cached_property
    def tags(self) -> frozenset[str]:
        """Names of tags that are not also items."""
        return frozenset(self.items_of.keys() - self.by_item.keys())

    def ways(self, name: str) -> tuple[Recipe, ...]:
        """The recipes of an item, or of all items of a tag."""
        recipes = self.by_item.get(name, ())
        return recipes or tuple(way for item in self.items_of.get(name, ()) for way in self.by_item[item])

    def accepts(self, wanted: str, offered: str) -> bool:
        """True if `offered` satisfies the input `wanted` of a recipe."""
        return offered == wanted or (wanted in self.tags and self.tag_of.get(offered) == wanted)

    def matching(self, item: str, offered: Iterable[tuple[str, int]]) -> Recipe | None:
        """The recipe for `item` whose inputs are exactly those offered, in any order; None if none matches."""
        offered = tuple(offered)
        for recipe in self.by_item.get(item, ()):
            if len(recipe.inputs) == len(offered) and self._uses(recipe, offered):
                return recipe
        return None

    def _uses(self, recipe: Recipe, offered: tuple[tuple[str, int], ...]) -> bool:
        left = list(offered)
        for wanted, count in recipe.inputs:
            match = next((entry for entry in left if self.accepts(wanted, entry[0])), None)
            if match is None or match[1] != count:
                return False
            left.remove(match)
        return not left

    def depth(self, name: str) -> int:
        """Minimum number of crafting levels below `name`: 0 for an item that can only be fetched."""
        return self._levels[0].get(name, 0)

    @property
    def easiest_way(self) -> Mapping[str, Recipe]:
        """Item or tag -> its recipe with the fewest levels; the first in the book's order among equals.

        Every input of such a recipe is on a lower level, so following them always terminates.
        """
        return self._levels[1]

    @cached_property
    def _levels(self) -> tuple[Mapping[str, int], Mapping[str, Recipe]]:
        # A fixed point computed from below, which handles cycles among recipes.
        depths = dict.fromkeys(self.raw, 0)
        easiest: dict[str, Recipe] = {}
        pending = sorted({*self.by_item, *self.tags})
        level = 0
        while pending:
            level += 1
            ready = {name: way for name in pending if (way := self._possible_way(name, depths)) is not None}
            if not ready:
                break
            easiest |= ready
            depths |= dict.fromkeys(ready, level)
            pending = [name for name in pending if name not in ready]
        return depths, easiest

    def _possible_way(self, name: str, depths: Mapping[str, int]) -> Recipe | None:
        return next((way for way in self.ways(name) if all(used in depths for used, _ in way.inputs)), None)


_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_INVENTORY = re.compile(r"inventory")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_MAX_DIGITS = 4000
"""Limit on the digits of a count, below the 4,300 digits of an integer that Python converts."""


@dataclass(frozen=True)
class CraftingTask:
    """Payload of a crafting `Task`."""

    goal: str
    """Name of the item to craft."""
    book: RecipeBook
    """The world's recipes; shared by reference, never copied."""
    optimal_steps: int
    """Number of steps of the planner from an empty inventory. Fetching for several craftings at once can take fewer
    steps if an item is crafted more than once."""
    depth: int
    """Crafting levels below the goal."""


class Refused(Exception):
    """Observation for an action that cannot be executed; internal to the crafting worlds."""


class CraftingWorld:
    """One episode of a crafting task. The world is deterministic; a fork copies only the inventory.

    Crafting the goal gives reward 1.0 and ends the episode; every other reward is 0. The world never truncates: the
    caller limits the steps.
    """

    def __init__(self) -> None:
        self._task: CraftingTask | None = None
        self._inventory: dict[str, int] = {}
        self._done = False

    @property
    def inventory(self) -> dict[str, int]:
        """A copy of the inventory: item -> count."""
        return dict(self._inventory)

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `CraftingTask` payload."""
        if not isinstance(task.payload, CraftingTask):
            raise EnvironmentStateError(
                f"CraftingWorld.reset expected a Task with a CraftingTask payload, got {type(task.payload).__name__} "
                f"(task {quoted(task.id)}): create tasks with amc_agents.envs.crafting"
            )
        self._task, self._inventory, self._done = task.payload, {}, False
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        """Execute `get`, `craft` or `inventory`; the observation of any other action says that it is invalid."""
        if self._task is None or self._done:
            when = "before reset" if self._task is None else "after the episode's end"
            raise EnvironmentStateError(f"CraftingWorld.step was called {when}: call reset(task) first")
        action = action.strip()
        try:
            observation, made = self._act(action)
        except Refused as refusal:
            return TimeStep.transition(str(refusal))
        if made == self._task.goal:
            self._done = True
            return TimeStep.termination(observation, self._reward())
        return TimeStep.transition(observation)

    async def fork(self, seed: int) -> Self:
        """Copy the world. The seed is unused, since the world is deterministic."""
        copy = type(self)()
        copy._task, copy._inventory, copy._done = self._task, dict(self._inventory), self._done
        return copy

    async def close(self) -> None:
        """Do nothing: the world holds no resources."""

    def _reward(self) -> float:
        """Return the reward for crafting the goal."""
        return 1.0

    def _act(self, action: str) -> tuple[str, str | None]:
        if match := _CRAFT.match(action):
            return self._craft(match[1], match[2])
        if match := _GET.match(action):
            return self._get(self._number(match[1]), match[2])
        if _INVENTORY.match(action):
            return self._list(), None
        raise Refused(f"Could not execute {action}")

    def _craft(self, output: str, inputs: str) -> tuple[str, str | None]:
        counted = _COUNTED.match(output)
        item = counted[2] if counted else output
        item = self._named(item)
        offered = [self._counted(part.strip()) for part in inputs.split(",")]
        too_few = Refused(f"Could not find enough items to craft {item_id(item)}")
        if any(self._inventory.get(name, 0) < count for name, count in offered):
            raise too_few
        recipe = self._book.matching(item, offered)
        if recipe is None:
            return self._craft_without_recipe(item, offered)
        # An item may be offered for two inputs, itself and its tag: the inventory must hold the sum.
        totals: dict[str, int] = {}
        for name, count in offered:
            totals[name] = totals.get(name, 0) + count
        if any(self._inventory.get(name, 0) < total for name, total in totals.items()):
            raise too_few
        for name, total in totals.items():
            self._add(name, -total)
        self._add(item, recipe.count)
        return f"Crafted {recipe.count} {item_id(item)}", item

    def _craft_without_recipe(self, item: str, offered: list[tuple[str, int]]) -> tuple[str, str | None]:
        """Answer a crafting that no recipe allows, though the inventory holds each offered input."""
        raise Refused(f"Could not find a valid recipe for {item_id(item)}")

    def _get(self, count: int, text: str) -> tuple[str, str]:
        item = self._named(text)
        if item not in self._book.raw:
            raise Refused(f"Could not find {text}")
        self._add(item, count)
        return f"Got {count} {text}", item

    def _list(self) -> str:
        if not self._inventory:
            return "Inventory: You are not carrying anything."
        return "Inventory: " + "".join(f"[{item}] ({count}) " for item, count in self._inventory.items())

    @property
    def _book(self) -> RecipeBook:
        assert self._task is not None
        return self._task.book

    def _add(self, item: str, count: int) -> None:
        total = self._inventory.get(item, 0) + count
        if total:
            self._inventory[item] = total
        else:
            self._inventory.pop(item, None)

    def _named(self, text: str) -> str:
        return self._book.aliases.get(text, text)

    def _counted(self, text: str) -> tuple[str, int]:
        match = _COUNTED.match(text)
        if match is None:
            raise Refused(f"Wrong item format: {text}")
        return self._named(match[2]), self._number(match[1])

    @staticmethod
    def _number(digits: str) -> int:
        if len(digits) > _MAX_DIGITS:
            raise Refused(f"Wrong item format: a number of {len(digits)} digits")
        return int(digits)
