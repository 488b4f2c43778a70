"""The workshop: a crafting world with irreversible mistakes, hidden success, or both.

- **Finite stock.** Each raw item exists a limited number of times, and a crafting that no recipe allows destroys its
  ingredients. An agent can therefore reach a dead end, a state from which the goal cannot be crafted.
- **Hidden success.** The task names an item that must not be used. Crafting the goal always ends the episode with the
  same observation, but the reward is 1.0 only if nothing was crafted with that item.

The planner is exact: it returns the fewest actions to the goal from any state, or proves a dead end. Recipes have no
cycles, so a state is solvable if numbers of craftings exist that balance inputs, inventory and stock, whatever their
order. The planner goes through the items from the goal downwards. When it comes to an item, its whole demand is known,
and every irreducible choice among the item's recipes is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from amc_agents.envs.crafting.world import CraftingTask, CraftingWorld, Recipe, RecipeBook, Refused
from amc_agents.errors import EnvironmentStateError
from amc_agents.quoting import quoted
from amc_agents.types import Task, TimeStep

JUNK = "Crafted junk"
"""Observation of a crafting that destroys its ingredients."""


@dataclass(frozen=True)
class WorkshopTask(CraftingTask):
    """Payload of a workshop `Task`. `optimal_steps` is the exact minimum."""

    stock: Mapping[str, int] | None = None
    """Raw item -> available count; None: unlimited, and wrong craftings are refused without loss."""
    without: str | None = None
    """Item that must not be used in any crafting; None: all may be used."""


class WorkshopWorld(CraftingWorld):
    """One episode of a workshop task. The world is deterministic and never truncates.

    Crafting the goal ends the episode. Its reward is 1.0, or 0 if the forbidden item was used in any crafting; every
    other reward is 0. No observation mentions the forbidden item's use or the stock that is left.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stock: dict[str, int] | None = None
        self._spoiled = False

    @property
    def stock(self) -> dict[str, int] | None:
        """A copy of what is left of the raw items; None: unlimited."""
        return None if self._stock is None else dict(self._stock)

    @property
    def spoiled(self) -> bool:
        """True if the forbidden item was used in a crafting, so that the goal gives no reward."""
        return self._spoiled

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `WorkshopTask` payload."""
        if not isinstance(task.payload, WorkshopTask):
            raise EnvironmentStateError(
                f"WorkshopWorld.reset expected a Task with a WorkshopTask payload, got {type(task.payload).__name__} "
                f"(task {quoted(task.id)}): create tasks with amc_agents.envs.workshop"
            )
        self._stock = None if task.payload.stock is None else dict(task.payload.stock)
        self._spoiled = False
        return await super().reset(task)

    async def fork(self, seed: int) -> Self:
        """Copy the world. The seed is unused, since the world is deterministic."""
        copy = await super().fork(seed)
        copy._stock, copy._spoiled = self.stock, self._spoiled
        return copy

    def _reward(self) -> float:
        return 0.0 if self._spoiled else 1.0

    def _get(self, count: int, text: str) -> tuple[str, str]:
        item = self._named(text)
        if self._stock is not None and item in self._book.raw:
            left = self._stock.get(item, 0)
            if count > left:
                raise Refused(f"Could not find {count} {text}")
            self._stock[item] = left - count
        return super()._get(count, text)

    def _craft(self, output: str, inputs: str) -> tuple[str, str | None]:
        assert isinstance(self._task, WorkshopTask)
        forbidden = self._task.without
        before = self._inventory.get(forbidden, 0) if forbidden else 0
        crafted = super()._craft(output, inputs)
        if forbidden and self._inventory.get(forbidden, 0) < before:
            self._spoiled = True
        return crafted

    def _craft_without_recipe(self, item: str, offered: list[tuple[str, int]]) -> tuple[str, str | None]:
        if self._stock is None:
            return super()._craft_without_recipe(item, offered)
        for name, count in offered:
            self._add(name, -min(count, self._inventory.get(name, 0)))
        return JUNK, None


@dataclass(frozen=True)
class Solution:
    """Numbers of fetches and craftings that lead to the goal, in an order that works."""

    fetches: tuple[tuple[str, int], ...]
    """(raw item, count) to fetch, each in a single action."""
    crafts: tuple[tuple[Recipe, int], ...]
    """(recipe, number of craftings), lowest items first."""

    @property
    def n_steps(self) -> int:
        """The number of actions."""
        return len(self.fetches) + sum(times for _, times in self.crafts)

    @property
    def actions(self) -> list[str]:
        """The actions as text."""
        fetches = [f"get {count} {item}" for item, count in self.fetches]
        return fetches + [str(recipe) for recipe, times in self.crafts for _ in range(times)]


def solution(
    task: WorkshopTask,
    inventory: Mapping[str, int] | None = None,
    stock: Mapping[str, int] | None = None,
    *,
    spoiled: bool = False,
) -> Solution | None:
    """Return a solution with the fewest actions, or None in a dead end.

    Args:
        task: the task.
        inventory: what the agent holds; None: nothing.
        stock: what is left of the raw items; None: the task's stock.
        spoiled: the forbidden item was used, so that no continuation is a success.
    """
    if spoiled:
        return None
    search = _Search(task, inventory or {}, task.stock if stock is None else stock)
    return min(search.solutions(), key=lambda found: found.n_steps, default=None)


def solution_from(task: WorkshopTask, world: WorkshopWorld) -> Solution | None:
    """Return a solution with the fewest actions from the state of a world, or None in a dead end."""
    return solution(task, world.inventory, world.stock, spoiled=world.spoiled)


class _Search:
    def __init__(self, task: WorkshopTask, inventory: Mapping[str, int], stock: Mapping[str, int] | None) -> None:
        self._task, self._inventory, self._stock = task, inventory, stock
        self._order = _downwards(task.book, task.goal)

    def solutions(self) -> Iterator[Solution]:
        yield from self._below(0, {self._task.goal: self._inventory.get(self._task.goal, 0) + 1}, ())

    def _below(
        self, position: int, demand: Mapping[str, int], crafts: tuple[tuple[Recipe, int], ...]
    ) -> Iterator[Solution]:
        """Yield the solutions that satisfy the demand for the items from `position` on."""
        if position == len(self._order):
            fetches = self._fetches(demand)
            if fetches is not None:
                yield Solution(fetches, crafts[::-1])
            return
        item = self._order[position]
        missing = demand.get(item, 0) - self._inventory.get(item, 0)
        ways = [
            way for way in self._task.book.by_item[item] if all(name != self._task.without for name, _ in way.inputs)
        ]
        for chosen in _choices(ways, missing):
            more = dict(demand)
            for way, times in chosen:
                for name, count in way.inputs:
                    more[name] = more.get(name, 0) + count * times
            yield from self._below(position + 1, more, (*crafts, *chosen))

    def _allowed(self, item: str) -> list[Recipe]:
        ways = self._task.book.by_item[item]
        return [way for way in ways if all(name != self._task.without for name, _ in way.inputs)]

    def _fetches(self, demand: Mapping[str, int]) -> tuple[tuple[str, int], ...] | None:
        fetches = []
        for item, count in demand.items():
            missing = count - self._inventory.get(item, 0)
            if item not in self._task.book.raw or missing <= 0:
                continue
            if self._stock is not None and missing > self._stock.get(item, 0):
                return None
            fetches.append((item, missing))
        return tuple(fetches)


def _choices(ways: list[Recipe], missing: int) -> Iterator[tuple[tuple[Recipe, int], ...]]:
    """Yield numbers of craftings that produce at least `missing` items."""
    if missing <= 0:
        yield ()
    elif ways:
        first, *others = ways
        for times in range(-(-missing // first.count), -1, -1):
            for rest in _choices(others, missing - times * first.count):
                yield ((first, times), *rest) if times else rest


@lru_cache(maxsize=256)
def _downwards_of(recipes: tuple[Recipe, ...], goal: str) -> tuple[str, ...]:
    book = RecipeBook(recipes)
    done: dict[str, None] = {}

    def visit(item: str) -> None:
        for way in book.by_item.get(item, ()):
            for name, _ in way.inputs:
                if name not in done:
                    visit(name)
        if item in book.by_item:
            done[item] = None

    visit(goal)
    return tuple(reversed(done))


def _downwards(book: RecipeBook, goal: str) -> tuple[str, ...]:
    """Return the goal and the crafted items below it, each before the inputs of its recipes."""
    return _downwards_of(book.recipes, goal)
