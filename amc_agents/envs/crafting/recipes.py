"""Recipes, and the book of them that a crafting world is made of.

Items are named as people write them (`oak planks`); `minecraft:oak_planks` is the same item as an id.
A *tag* is a class of items that may stand for each other (`planks`): a recipe may ask for a tag.
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
    """One way of making an item."""

    item: str
    """Name of what is made."""
    count: int
    """How many of it one crafting gives."""
    inputs: tuple[tuple[str, int], ...]
    """What one crafting uses up: (name of an item or tag, how many), in the order it is written."""

    def __str__(self) -> str:
        """The recipe as TextCraft writes it, which is also the action that carries it out."""
        return f"craft {self.count} {self.item} using {self.ingredients}"

    @property
    def ingredients(self) -> str:
        """The inputs as text: `2 oak planks, 1 stick`."""
        return ", ".join(f"{count} {name}" for name, count in self.inputs)


@dataclass(frozen=True)
class RecipeBook:
    """All recipes of a world, and which item belongs to which tag."""

    recipes: tuple[Recipe, ...]
    tag_of: Mapping[str, str] = field(default_factory=dict)
    """Item -> the tag it belongs to (TextCraft: the recipe's group)."""
    known: frozenset[str] = frozenset()
    """Items that are known to exist; those that nothing makes can be fetched, used or not."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spelling -> name (`oak_planks` -> `oak planks`): the official world reads both."""

    @cached_property
    def by_item(self) -> Mapping[str, tuple[Recipe, ...]]:
        """Item -> every way of making it."""
        found: dict[str, list[Recipe]] = {}
        for recipe in self.recipes:
            found.setdefault(recipe.item, []).append(recipe)
        return {item: tuple(ways) for item, ways in found.items()}

    @cached_property
    def items_of(self) -> Mapping[str, tuple[str, ...]]:
        """Tag -> the craftable items that belong to it, in the book's order."""
        found: dict[str, list[str]] = {}
        for item in self.by_item:
            if item in self.tag_of:
                found.setdefault(self.tag_of[item], []).append(item)
        return {tag: tuple(items) for tag, items in found.items()}

    @cached_property
    def raw(self) -> frozenset[str]:
        """Items that can only be fetched: they are used or known, and nothing makes them."""
        used = {name for recipe in self.recipes for name, _ in recipe.inputs}
        return frozenset((used | self.known) - self.by_item.keys() - self.tags)

    @cached_property
    def tags(self) -> frozenset[str]:
        """Names that stand for a class of items and are not items themselves."""
        return frozenset(self.items_of.keys() - self.by_item.keys())

    def ways(self, name: str) -> tuple[Recipe, ...]:
        """Every recipe that makes the item, or any item of the tag, of that name."""
        own = self.by_item.get(name, ())
        return own or tuple(way for item in self.items_of.get(name, ()) for way in self.by_item[item])

    def accepts(self, wanted: str, offered: str) -> bool:
        """Whether `offered` may be used where a recipe asks for `wanted`."""
        return offered == wanted or (wanted in self.tags and self.tag_of.get(offered) == wanted)

    def matching(self, item: str, offered: Iterable[tuple[str, int]]) -> Recipe | None:
        """The recipe for `item` that uses exactly what is offered, in any order; None if there is none."""
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
        """Least number of crafting levels below `name`: 0 for what can only be fetched."""
        return self._levels[0].get(name, 0)

    @property
    def easiest_way(self) -> Mapping[str, Recipe]:
        """Item or tag -> its way with the fewest levels, the first of them in the book's order.

        Every input of such a way lies on a lower level, so following them never runs in a circle.
        """
        return self._levels[1]

    @cached_property
    def _levels(self) -> tuple[Mapping[str, int], Mapping[str, Recipe]]:
        # Fixed point from below, so that cycles among recipes do no harm.
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
