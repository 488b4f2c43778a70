"""The crafting world: TextCraft's commands and observations for any recipe book."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from amc_agents.envs.crafting.recipes import RecipeBook, item_id
from amc_agents.errors import EnvironmentStateError
from amc_agents.quoting import quoted
from amc_agents.types import Task, TimeStep

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
