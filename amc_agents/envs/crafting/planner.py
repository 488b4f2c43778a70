"""A stateless planner: the next useful action from any inventory, with the inputs of a recipe in written order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from amc_agents.envs.crafting.recipes import Recipe, RecipeBook


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
