"""The workshop: a crafting world with irreversible mistakes, hidden success, or both.

- **Finite stock.** Each raw item exists a limited number of times, and a crafting that no recipe allows destroys its
  ingredients. An agent can therefore reach a dead end, a state from which the goal cannot be crafted.
- **Hidden success.** The task names an item that must not be used. Crafting the goal always ends the episode with the
  same observation, but the reward is 1.0 only if nothing was crafted with that item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from amc_agents.envs.crafting.world import CraftingTask, CraftingWorld, Refused
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
