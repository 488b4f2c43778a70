"""GOOD, BAD or UNKNOWN for every step of a trajectory, by rules (LAC, appendix B.2: what reflections say of a step).

A step is GOOD where the goal needs it or it brings what has to be known, BAD where it is useless or wrong, UNKNOWN
where that cannot be told.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amc_agents.envs.crafting import CraftingTask, CraftingWorld, plan
from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task, Trajectory

Label = Literal["GOOD", "BAD", "UNKNOWN"]
LABELS: tuple[Label, ...] = ("GOOD", "BAD", "UNKNOWN")

Labeller = Callable[[Trajectory], Sequence[Label]]
"""A trajectory -> `[T]` labels of its steps. The last step may have no observation: a candidate that was not done."""


@dataclass(frozen=True)
class OutcomeLabels:
    """Labels from a whole trajectory alone, for worlds without an expert: cautious, and mostly UNKNOWN.

    The last steps before a success are GOOD; a step that repeats the one before it and gets the same answer is BAD.
    """

    success: float = 1.0
    """The least return that counts as a success."""
    last: int = 3
    """How many steps before a success are GOOD."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """`[T]` labels."""
        steps = trajectory.steps
        succeeded = trajectory.done and trajectory.return_ >= self.success
        labels: list[Label] = []
        for number, step in enumerate(steps):
            before = steps[number - 1] if number else None
            if before and step.observation and (step.action, step.observation) == (before.action, before.observation):
                labels.append("BAD")
            else:
                labels.append("GOOD" if succeeded and number >= len(steps) - self.last else "UNKNOWN")
        return labels


@dataclass(frozen=True)
class CraftingLabels:
    """Labels from the crafting world and its planner: by how many steps the goal has come nearer.

    Fewer steps are left: GOOD. More, or the world refused the action: BAD. As many: `useless`.
    """

    useless: Label = "BAD"
    """What a step is that brings nothing; `inventory` too, as it tells nothing that was not seen before."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """`[T]` labels. Raises `ConfigurationError` where the task is no crafting task."""
        payload = trajectory.task.payload
        # A dataset keeps no payload, but the instruction lists the recipes.
        task = trajectory.task if payload is not None else parse_instruction(trajectory.task.instruction)
        if not isinstance(task.payload, CraftingTask):
            raise ConfigurationError(f"labels by the crafting planner need crafting tasks, got {trajectory.task.id!r}")
        world = CraftingWorld()
        _answer(world.reset(Task(task.id, task.instruction, task.payload)))
        labels: list[Label] = []
        carried = world.inventory
        left = self._left(task.payload, carried)
        for step in trajectory.steps:
            answer = _answer(world.step(step.action))
            before, carried = carried, world.inventory
            if answer.done:
                labels.append("GOOD")
                break
            now = left if carried == before else self._left(task.payload, carried)
            refused = carried == before and step.action.strip() != "inventory"
            if now == left and not refused:
                labels.append(self.useless)
            else:
                labels.append("GOOD" if now < left else "BAD")
            left = now
        if len(labels) != len(trajectory.steps):
            raise ConfigurationError(f"task {task.id!r}: the trajectory goes on after its goal was made")
        return labels

    @staticmethod
    def _left(task: CraftingTask, inventory: dict[str, int]) -> int:
        way = plan(task.book, task.goal, inventory=inventory)
        # Only a goal that cannot be made at all has no way: then nothing brings it nearer.
        return 0 if way is None else len(way)


def _answer(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """What a crafting world answers: it never waits, so no event loop is needed (one may be running already)."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a crafting world does not wait")
