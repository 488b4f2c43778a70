"""Who proposes and who judges goals in the crafting world, where nobody can be asked in words.

Goals are written as the world writes its answers, which is what a state is called as a goal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from amc_agents.bench.embedded_imagination import EmbeddedImagination
from amc_agents.critics.goal.embeddings import Vectors
from amc_agents.envs.crafting import CraftingTask, CraftingWorld, RecipeBook, plan
from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.envs.crafting.recipes import item_id
from amc_agents.pnlc.types import Proposed
from amc_agents.types import FloatArray, Step, Task, Trajectory

GAMMA = 0.9


class RecipeGoals:
    """Goals from the recipes that the task's text lists, and from what has been crafted so far; no model is asked.

    Good: the goal item is crafted; the next item that it needs is. Bad: the world refuses to craft that next item, for
    want of a recipe or of items.
    """

    async def propose(self, trajectory: Trajectory, thought: str, n_positive: int, n_negative: int) -> Proposed:
        """Two goals of each kind."""
        if (n_positive, n_negative) != (2, 2):
            raise ValueError(f"two goals of each kind are proposed, not {n_positive} and {n_negative}")
        payload = task_of(trajectory).payload
        made = {step.observation for step in trajectory.steps}
        goal = crafted(payload.book, payload.goal)
        missing = [item for item in needed(payload) if crafted(payload.book, item) not in made]
        subgoal = missing[0]
        # Where the goal alone is left, its first ingredients are the step before.
        item, count = payload.book.easiest_way[payload.goal].inputs[-1]
        before = crafted(payload.book, subgoal) if subgoal != payload.goal else f"Got {count} {item}"
        refused = (
            f"Could not find a valid recipe for {item_id(subgoal)}",
            f"Could not find enough items to craft {item_id(subgoal)}",
        )
        return Proposed((goal, before), refused)


def needed(task: CraftingTask) -> list[str]:
    """What has to be crafted, each thing after what it is made of; the goal last."""
    found: list[str] = []

    def visit(item: str) -> None:
        if item in task.book.raw or item in found:
            return
        for name, _ in task.book.easiest_way[item].inputs:
            visit(name)
        found.append(item)

    visit(task.goal)
    return found


def crafted(book: RecipeBook, item: str) -> str:
    """What the world answers where an item is crafted."""
    return f"Crafted {book.easiest_way[item].count} {item_id(item)}"


def task_of(trajectory: Trajectory) -> Any:
    """The task with its recipes, which its text lists."""
    task = trajectory.task
    return task if isinstance(task.payload, CraftingTask) else parse_instruction(task.instruction)


def similarity(one: Vectors, other: Vectors) -> FloatArray:
    """`[n]` cosines of rows."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    found: FloatArray = np.sum(one * other, axis=1) / np.maximum(lengths, 1e-12)
    return found


async def planned(triples: Sequence[Any]) -> FloatArray:
    """`[n]` GAMMA to the steps after which the planner would be at the goal, the thought's action done; else 0."""
    return np.array([_soon(await expert_future(one.state, one.trajectory.steps[one.at]), one.goal) for one in triples])


async def expert_future(state: Trajectory, step: Step) -> list[str]:
    """What the world answers to a step, and then to the planner's."""
    task = task_of(state)
    world = CraftingWorld()
    await world.reset(Task(task.id, task.instruction, task.payload))
    for before in state.steps:
        await world.step(before.action)
    answer = await world.step(step.action)
    found = [answer.observation]
    actions = () if answer.done else plan(task.payload.book, task.payload.goal, inventory=world.inventory) or ()
    for action in actions:
        found.append((await world.step(action)).observation)
    return found


async def imagined(triples: Sequence[Any], depth: int = 6) -> FloatArray:
    """`[n]` as `planned`, by what the policy imagines: it writes on, its own turns and the world's answers."""
    turns = [one.trajectory.steps[one.at] for one in triples]
    said = [Step(turn.action, thought=turn.thought) for turn in turns]
    asked = [one.state.extended(step) for one, step in zip(triples, said, strict=True)]
    futures = await EmbeddedImagination(depth=depth).imagine(asked)
    return np.array([
        _soon([step.observation for step in future.steps[one.at :]], one.goal)
        for one, future in zip(triples, futures, strict=True)
    ])  # fmt: skip


def _soon(observations: Sequence[str], goal: str) -> float:
    return GAMMA ** observations.index(goal) if goal in observations else 0.0
