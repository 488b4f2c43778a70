"""Proposers and judges of goals in the crafting world, without a language model.

A goal is written like an observation of the world, because the name of a state as a goal is its observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.critics.goal.embeddings import Vectors
from amc_agents.envs.crafting import CraftingTask, CraftingWorld, RecipeBook, plan
from amc_agents.envs.crafting.tasks import parse_instruction
from amc_agents.envs.crafting.world import item_id
from amc_agents.pnlc.types import Proposed
from amc_agents.types import FloatArray, Step, Task, Trajectory
from reproduce.embedded_imagination import EmbeddedImagination

GAMMA = 0.9


class RecipeGoals:
    """Proposes goals from the recipes in the task's text and the items crafted so far, without a model.

    Good: the goal item, or the next item that it needs, is crafted. Bad: the world refuses to craft that next item,
    because a recipe or items are missing.
    """

    async def propose(self, trajectory: Trajectory, thought: str, n_positive: int, n_negative: int) -> Proposed:
        """Propose two goals of each kind."""
        if (n_positive, n_negative) != (2, 2):
            raise ValueError(f"expected 2 goals of each kind, got {n_positive} and {n_negative}")
        payload = task_of(trajectory).payload
        made = {step.observation for step in trajectory.steps}
        goal = crafted(payload.book, payload.goal)
        missing = [item for item in needed(payload) if crafted(payload.book, item) not in made]
        subgoal = missing[0]
        # If only the goal is missing, the subgoal is its last ingredient.
        item, count = payload.book.easiest_way[payload.goal].inputs[-1]
        before = crafted(payload.book, subgoal) if subgoal != payload.goal else f"Got {count} {item}"
        refused = (
            f"Could not find a valid recipe for {item_id(subgoal)}",
            f"Could not find enough items to craft {item_id(subgoal)}",
        )
        return Proposed((goal, before), refused)


def needed(task: CraftingTask) -> list[str]:
    """List the items to craft, each after its ingredients; the goal is last."""
    items: list[str] = []

    def visit(item: str) -> None:
        if item in task.book.raw or item in items:
            return
        for name, _ in task.book.easiest_way[item].inputs:
            visit(name)
        items.append(item)

    visit(task.goal)
    return items


def crafted(book: RecipeBook, item: str) -> str:
    """Return the observation of crafting an item."""
    return f"Crafted {book.easiest_way[item].count} {item_id(item)}"


def task_of(trajectory: Trajectory) -> Any:
    """Return the task with its recipes, parsed from its text if necessary."""
    task = trajectory.task
    return task if isinstance(task.payload, CraftingTask) else parse_instruction(task.instruction)


def similarity(left: Vectors, right: Vectors) -> FloatArray:
    """`[n]` cosines of rows."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    cosines: FloatArray = np.sum(left * right, axis=1) / np.maximum(lengths, 1e-12)
    return cosines


async def planned(triples: Sequence[Any]) -> FloatArray:
    """`[n]` GAMMA to the power of the planner's steps to the goal after the thought's action; 0 if not reached."""
    futures = [await expert_future(triple.state, triple.trajectory.steps[triple.at]) for triple in triples]
    return np.array([_soon(future, triple.goal) for future, triple in zip(futures, triples, strict=True)])


async def expert_future(state: Trajectory, step: Step) -> list[str]:
    """Return the observations of a step and of the planner's steps after it."""
    task = task_of(state)
    world = CraftingWorld()
    await world.reset(Task(task.id, task.instruction, task.payload))
    for earlier in state.steps:
        await world.step(earlier.action)
    answer = await world.step(step.action)
    observations = [answer.observation]
    actions = () if answer.done else plan(task.payload.book, task.payload.goal, inventory=world.inventory) or ()
    for action in actions:
        observations.append((await world.step(action)).observation)
    return observations


async def imagined(triples: Sequence[Any], depth: int = 6) -> FloatArray:
    """`[n]` like `planned`, for the policy's imagination: it writes both its turns and the world's observations."""
    turns = [triple.trajectory.steps[triple.at] for triple in triples]
    steps = [Step(turn.action, thought=turn.thought) for turn in turns]
    starts = [triple.state.extended(step) for triple, step in zip(triples, steps, strict=True)]
    futures = await EmbeddedImagination(depth=depth).imagine(starts)
    return np.array([
        _soon([step.observation for step in future.steps[triple.at :]], triple.goal)
        for triple, future in zip(triples, futures, strict=True)
    ])  # fmt: skip


def _soon(observations: Sequence[str], goal: str) -> float:
    return GAMMA ** observations.index(goal) if goal in observations else 0.0
