"""A careless expert of the workshop: the noisy expert of crafting, led by the exact planner.

Carelessness is a wrong habit: for some items the expert uses a recipe drawn at random, whatever the stock or the
forbidden item. It drops its habits when the world refuses an action. In a dead end it goes on as if nothing were
limited, so that the policy learns to go on too.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from amc_agents.envs.crafting.tasks import Move
from amc_agents.envs.crafting.world import Recipe
from amc_agents.envs.workshop.tasks import restricted
from amc_agents.envs.workshop.world import WorkshopTask, WorkshopWorld, solution, solution_from
from amc_agents.types import Task
from reproduce.crafting.expert import NoisyExpert

HORIZON = 20
DROPS_HABITS = 0.5
"""Probability of dropping the habits after a refused action."""


class CarelessExpert:
    """The expert in a dialogue."""

    def __init__(self, task: WorkshopTask, rng: np.random.Generator, error_rate: float, careless: float) -> None:
        self._task, self._rng = task, rng
        self._noisy = _Noisy(task, rng, error_rate)
        choices = {item: ways for item, ways in task.book.by_item.items() if len(ways) > 1}
        self._habits = {
            item: ways[int(rng.integers(len(ways)))] for item, ways in choices.items() if rng.random() < careless
        }

    def turn(self, world: WorkshopWorld, refused: bool) -> str:
        """Write the next message.

        Args:
            world: the state of the world.
            refused: the world refused the last action.
        """
        if refused and self._rng.random() < DROPS_HABITS:
            self._habits = {}
        task = replace(self._task, book=restricted(self._task.book, self._habits))
        best = solution_from(task, world) or solution(replace(task, stock=None, without=None), world.inventory)
        assert best is not None, "every task can be crafted with unlimited stock"
        chosen = {way.item: way for way, _ in reversed(best.crafts)}
        if not self._noisy.wandering:
            self._noisy.task = replace(self._task, book=restricted(self._task.book, chosen))
        return self._noisy.turn(world.inventory)

    @property
    def last_action(self) -> str:
        """The last action."""
        return self._noisy.last_action


class _Noisy(NoisyExpert):
    """The noisy expert, with one more mistake: a crafting with a wrong amount, which destroys what it uses."""

    def _maybe_wrong(self, move: Move, inventory: dict[str, int]) -> tuple[Recipe, str]:
        if not self.wandering and move.fetch is None and self.rng.random() < self.error_rate / 2:
            (item, count), *others = move.subgoal.inputs
            wrong = replace(move.subgoal, inputs=((item, max(1, count - 1)), *others[:1]))
            return move.subgoal, str(wrong)
        return super()._maybe_wrong(move, inventory)


async def play(task: Task, rng: np.random.Generator, error_rate: float, careless: float) -> list[tuple[str, str]]:
    """Play a dialogue of at most `HORIZON` steps: [(expert's message, world's answer), ...]."""
    world = WorkshopWorld()
    await world.reset(task)
    expert = CarelessExpert(task.payload, rng, error_rate, careless)
    rounds: list[tuple[str, str]] = []
    refused = False
    for _ in range(HORIZON):
        message = expert.turn(world, refused)
        answer = await world.step(expert.last_action)
        refused = answer.observation.startswith("Could not")
        rounds.append((message, answer.observation))
        if answer.done:
            break
    return rounds
