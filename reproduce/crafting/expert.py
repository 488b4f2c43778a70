"""A noisy expert that plays crafting tasks by the planner, with mistakes at a rate drawn per dialogue.

The embedded policy is trained on its dialogues. The rate is constant within a dialogue, so that the policy learns to
keep failing after a failure, like a language model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from amc_agents.envs.crafting.tasks import Move, next_move
from amc_agents.envs.crafting.world import CraftingTask, CraftingWorld, Recipe
from amc_agents.types import Task

HORIZON = 20


@dataclass
class NoisyExpert:
    """The expert in a dialogue."""

    task: CraftingTask
    rng: np.random.Generator
    error_rate: float
    whole_way: bool = True
    """Thoughts lead from the last thought to the sub-goal recipe by recipe; else they state only the sub-goal."""
    last_action: str = ""
    path: tuple[Recipe, ...] = ()
    """Recipes of the last thought, from the goal to the current sub-goal."""
    wandering: list[str] = field(default_factory=list)

    def turn(self, inventory: dict[str, int]) -> str:
        """Write the next message: a thought if the sub-goal changes, then an action."""
        move = next_move(self.task.book, self.task.goal, inventory)
        assert move is not None, "every generated task has a plan"
        towards, action = self._maybe_wrong(move, inventory)
        path = self._path_to(towards, inventory)
        thought = self._thought(path)
        self.last_action, self.path = action, path
        return f"Thought: {thought}\nAction: {action}" if thought else f"Action: {action}"

    def _path_to(self, subgoal: Recipe, inventory: dict[str, int]) -> tuple[Recipe, ...]:
        """Return the recipes from the goal to the sub-goal, or only the sub-goal if it is not needed."""
        book = self.task.book
        path = [book.by_item[self.task.goal][0]]
        while path[-1] is not subgoal:
            missing = [name for name, count in path[-1].inputs if inventory.get(name, 0) < count]
            if not missing or missing[0] not in book.by_item:
                return (subgoal,)
            path.append(book.by_item[missing[0]][0])
        return tuple(path)

    def _thought(self, path: tuple[Recipe, ...]) -> str:
        """Write the new recipes of a path in small steps for a small model; empty if the sub-goal is unchanged."""
        if path[-1].item == (self.path[-1].item if self.path else ""):
            return ""
        if not self.whole_way:
            new: tuple[Recipe, ...] = path[-1:]
        elif path[: len(self.path)] == self.path:
            new = path[len(self.path) :]
        else:
            shared = sum(a is b for a, b in zip(path, self.path, strict=False))
            new = path[max(shared - 1, 0) :]
        return ". ".join(f"{recipe.item} using {recipe.ingredients}" for recipe in new)

    def _maybe_wrong(self, move: Move, inventory: dict[str, int]) -> tuple[Recipe, str]:
        if self.wandering:
            return self._wander()
        if self.rng.random() >= self.error_rate:
            return move.subgoal, move.action
        kind = self.rng.choice(["craftable", "amount", "early", "wander", "repeat", "inventory"])
        if kind == "craftable":
            made = [name for name, _ in move.subgoal.inputs if name not in self.task.book.raw]
            name = made[0] if made else move.subgoal.item
            return move.subgoal, f"get 1 {name}"
        if kind == "amount" and move.fetch is not None:
            item, count = move.fetch
            wrong = max(1, count + int(self.rng.choice([-1, 1])))
            return move.subgoal, f"get {wrong} {item}"
        if kind == "early":
            return move.subgoal, str(move.subgoal)
        if kind == "repeat" and self.last_action:
            return move.subgoal, self.last_action
        if kind == "inventory":
            return move.subgoal, "inventory"
        self._start_wandering(inventory)
        return self._wander()

    def _start_wandering(self, inventory: dict[str, int]) -> None:
        recipes = self.task.book.recipes
        recipe = recipes[int(self.rng.integers(len(recipes)))]
        fetches = [f"get {count} {name}" for name, count in recipe.inputs if name in self.task.book.raw]
        actions = [*fetches, str(recipe)][: int(self.rng.integers(1, 4))]
        self.wandering = [str(recipe), *actions]

    def _wander(self) -> tuple[Recipe, str]:
        towards, action, *rest = self.wandering
        self.wandering = [towards, *rest] if rest else []
        recipe = next(recipe for recipe in self.task.book.recipes if str(recipe) == towards)
        return recipe, action


async def play(
    task: Task, rng: np.random.Generator, error_rate: float, *, whole_way: bool = True, horizon: int = HORIZON
) -> list[tuple[str, str]]:
    """Play a dialogue of at most `horizon` steps: [(expert's message, world's answer), ...]."""
    world = CraftingWorld()
    await world.reset(task)
    expert = NoisyExpert(task.payload, rng, error_rate, whole_way)
    rounds: list[tuple[str, str]] = []
    for _ in range(horizon):
        message = expert.turn(world.inventory)
        answer = await world.step(expert.last_action)
        rounds.append((message, answer.observation))
        if answer.done:
            break
    return rounds
