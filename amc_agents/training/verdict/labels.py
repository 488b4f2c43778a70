"""Label every step of a trajectory GOOD, BAD or UNKNOWN by rules (the labels of LAC's reflections, appendix B.2).

A step is GOOD if the goal needs it or it reveals necessary information, BAD if it is useless or wrong, and UNKNOWN if
neither can be decided.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from amc_agents.envs.crafting import CraftingTask, CraftingWorld, plan
from amc_agents.envs.crafting.instruction import parse_instruction
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task, Trajectory

Label = Literal["GOOD", "BAD", "UNKNOWN"]
LABELS: tuple[Label, ...] = ("GOOD", "BAD", "UNKNOWN")

Labeller = Callable[[Trajectory], Sequence[Label]]
"""A trajectory -> `[T]` labels of its steps. A last step without an observation is a candidate that was not taken."""


@dataclass(frozen=True)
class OutcomeLabels:
    """Label steps from the trajectory only, for worlds without an expert. Most labels are UNKNOWN.

    The last steps before a success are GOOD. A step that repeats the previous step and its observation is BAD.
    """

    success: float = 1.0
    """Minimum return of a success."""
    last: int = 3
    """Number of GOOD steps before a success."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """Label the steps: `[T]`."""
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
    """Label steps of the crafting world by the planner's remaining steps.

    Fewer remain: GOOD. More remain, or the world refused the action: BAD. Equally many remain: `useless`.
    """

    useless: Label = "BAD"
    """Label of a step without progress, including `inventory`, which reveals nothing new."""

    def __call__(self, trajectory: Trajectory) -> list[Label]:
        """Label the steps: `[T]`.

        Raises:
            ConfigurationError: the task is not a crafting task.
        """
        payload = trajectory.task.payload
        # A dataset does not store the payload, but the instruction lists the recipes.
        task = trajectory.task if payload is not None else parse_instruction(trajectory.task.instruction)
        if not isinstance(task.payload, CraftingTask):
            raise ConfigurationError(
                f"labels by the crafting planner need crafting tasks, got {quoted(trajectory.task.id)}"
            )
        world = CraftingWorld()
        _result(world.reset(Task(task.id, task.instruction, task.payload)))
        labels: list[Label] = []
        carried = world.inventory
        left = self._remaining(task.payload, carried)
        for step in trajectory.steps:
            answer = _result(world.step(step.action))
            before, carried = carried, world.inventory
            if answer.done:
                labels.append("GOOD")
                break
            now = left if carried == before else self._remaining(task.payload, carried)
            refused = carried == before and step.action.strip() != "inventory"
            if now == left and not refused:
                labels.append(self.useless)
            else:
                labels.append("GOOD" if now < left else "BAD")
            left = now
        if len(labels) != len(trajectory.steps):
            raise ConfigurationError(f"task {quoted(task.id)}: the trajectory continues after its goal is reached")
        return labels

    @staticmethod
    def _remaining(task: CraftingTask, inventory: dict[str, int]) -> int:
        steps = plan(task.book, task.goal, inventory=inventory)
        # A goal that can never be made has no plan; no step then makes progress.
        return 0 if steps is None else len(steps)


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a crafting world's coroutine without an event loop, which may already be running: it never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("a crafting world does not wait")
