"""A stateless planner: the next good action from any inventory, left to right through the recipes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amc_agents.envs.crafting.recipes import Recipe, RecipeBook


@dataclass(frozen=True, slots=True)
class Move:
    """The planner's next action, and the recipe that it serves."""

    subgoal: Recipe
    """The recipe being worked on, with the items that it will use in place of tags."""
    fetch: tuple[str, int] | None
    """(item, how many) to get; None: the recipe can be crafted now."""

    @property
    def action(self) -> str:
        """The action as the world reads it."""
        if self.fetch is None:
            return str(self.subgoal)
        item, count = self.fetch
        return f"get {count} {item}"


def next_move(book: RecipeBook, goal: str, inventory: Mapping[str, int]) -> Move | None:
    """The next action on the planner's way to one `goal`, or None where there is no way.

    The easiest way is taken. Its first input that is missing is fetched if it is raw and worked on,
    recursively, if it is made; for a tag any one item of it will do, and what is carried comes first.
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
    """The planner's whole way from an inventory (None: empty); None where there is none within `limit` actions."""
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
    """A recipe's inputs with an item for each tag: one that is carried in full, else the easiest to make."""
    # A recipe takes a tag's whole count from one item.
    inputs: list[tuple[str, int]] = []
    for name, count in recipe.inputs:
        item = name
        if name in book.tags:
            carried = (held for held, number in inventory.items() if number >= count and book.accepts(name, held))
            item = next(carried, book.easiest_way[name].item)
        inputs.append((item, count))
    return tuple(inputs)
