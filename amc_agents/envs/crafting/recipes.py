"""Recipes, and the recipe book of a crafting world.

Items have plain names (`oak planks`); the id of the same item is `minecraft:oak_planks`. A *tag* is a class of
interchangeable items (`planks`); an input of a recipe may be a tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

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
