"""The crafting world: TextCraft's commands and answers over any recipe book."""

from __future__ import annotations

import re
from dataclasses import dataclass

from amc_agents.envs.crafting.recipes import RecipeBook, item_id
from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]+) (.*)")
_INVENTORY = re.compile(r"inventory")
_COUNTED = re.compile(r"([0-9]+) (.*)")
_MAX_DIGITS = 4000
"""Python reads and writes integers of up to 4,300 digits; what is carried has to stay below that."""


@dataclass(frozen=True)
class CraftingTask:
    """What a crafting world needs to set itself up: the payload of its `Task`."""

    goal: str
    """Name of the item to make."""
    book: RecipeBook
    """What the world can do; shared by reference, never copied."""
    optimal_steps: int
    """Length of the planner's way from an empty inventory: the task's difficulty. Fetching for several craftings
    at once can be shorter where an item is made more than once."""
    depth: int
    """Crafting levels below the goal."""


class _Refused(Exception):
    """The world's answer to an action that cannot be carried out; never leaves this file."""


class CraftingWorld:
    """One episode of a crafting task. Deterministic; a fork copies the inventory alone.

    Reward 1.0 on making the goal, which ends the episode; 0 otherwise. The world never truncates:
    the caller caps the steps.
    """

    def __init__(self) -> None:
        self._task: CraftingTask | None = None
        self._inventory: dict[str, int] = {}
        self._done = False

    @property
    def inventory(self) -> dict[str, int]:
        """What is carried: item -> how many (a copy)."""
        return dict(self._inventory)

    async def reset(self, task: Task) -> TimeStep:
        """Start a task whose payload is a `CraftingTask`."""
        if not isinstance(task.payload, CraftingTask):
            raise EnvironmentStateError(
                f"CraftingWorld.reset expected a Task with a CraftingTask payload, got {type(task.payload).__name__} "
                f"(task {task.id!r}): make tasks with amc_agents.envs.crafting"
            )
        self._task, self._inventory, self._done = task.payload, {}, False
        return TimeStep.restart(task.instruction)

    async def step(self, action: str) -> TimeStep:
        """Carry out `get`, `craft` or `inventory`; anything else gets the world's own refusal as observation."""
        if self._task is None or self._done:
            when = "before reset" if self._task is None else "after the episode's end"
            raise EnvironmentStateError(f"CraftingWorld.step was called {when}: call reset(task) first")
        action = action.strip()
        try:
            observation, made = self._act(action)
        except _Refused as refusal:
            return TimeStep.transition(str(refusal))
        if made == self._task.goal:
            self._done = True
            return TimeStep.termination(observation, 1.0)
        return TimeStep.transition(observation)

    async def fork(self, seed: int) -> CraftingWorld:
        """An independent world in the same state. The seed is unused: nothing here is random."""
        copy = CraftingWorld()
        copy._task, copy._inventory, copy._done = self._task, dict(self._inventory), self._done
        return copy

    async def close(self) -> None:
        """Nothing is held."""

    def _act(self, action: str) -> tuple[str, str | None]:
        if match := _CRAFT.match(action):
            return self._craft(match[1], match[2])
        if match := _GET.match(action):
            return self._get(self._number(match[1]), match[2])
        if _INVENTORY.match(action):
            return self._list(), None
        raise _Refused(f"Could not execute {action}")

    def _craft(self, output: str, inputs: str) -> tuple[str, str]:
        counted = _COUNTED.match(output)
        item = counted[2] if counted else output
        item = self._named(item)
        offered = [self._counted(part.strip()) for part in inputs.split(",")]
        too_few = _Refused(f"Could not find enough items to craft {item_id(item)}")
        if any(self._inventory.get(name, 0) < count for name, count in offered):
            raise too_few
        recipe = self._book.matching(item, offered)
        if recipe is None:
            raise _Refused(f"Could not find a valid recipe for {item_id(item)}")
        # The same item may be offered for two inputs, an item and its tag: together it has to be there too.
        totals: dict[str, int] = {}
        for name, count in offered:
            totals[name] = totals.get(name, 0) + count
        if any(self._inventory.get(name, 0) < total for name, total in totals.items()):
            raise too_few
        for name, total in totals.items():
            self._add(name, -total)
        self._add(item, recipe.count)
        return f"Crafted {recipe.count} {item_id(item)}", item

    def _get(self, count: int, text: str) -> tuple[str, str]:
        item = self._named(text)
        if item not in self._book.raw:
            raise _Refused(f"Could not find {text}")
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
            raise _Refused(f"Wrong item format: {text}")
        return self._named(match[2]), self._number(match[1])

    @staticmethod
    def _number(digits: str) -> int:
        if len(digits) > _MAX_DIGITS:
            raise _Refused(f"Wrong item format: a number of {len(digits)} digits")
        return int(digits)
