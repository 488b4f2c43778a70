"""A value model that learns a grade of every state, instead of the outcome of its trajectory.

The grade is the planner's, or V^pi by rollouts. Both need the worlds of the training tasks. At run time the critic
reads the transcript alone, as every value model does: the labels are privileged information of the training only.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import numpy as np

from amc_agents.critics.render import turn
from amc_agents.training.settings import Objective
from amc_agents.training.value import row_building
from amc_agents.types import Environment, FloatArray, Task, Trajectory
from reproduce.beyond.play import Policy
from reproduce.dose.draws import Forest, Node
from reproduce.dose.judges import Rollouts
from reproduce.dose.noise import grade
from reproduce.dose.playing import read

Key = tuple[str, tuple[str, ...]]
"""A task's id, and the turns up to a state."""
Grade = Callable[[Sequence[Node], Forest], Awaitable[Sequence[float]]]
"""Grades unfinished states of a task."""


@contextmanager
def targets(grades: Mapping[Key, float]) -> Iterator[None]:
    """Train on grades of the unfinished states. A final state's target is its outcome."""

    def graded(trajectory: Trajectory, _: Objective) -> FloatArray:
        keys = _keys(trajectory)
        return np.array([*(grades[key] for key in keys[:-1]), float(trajectory.return_ > 0)])

    with mock.patch.object(row_building, "state_returns", graded):
        yield


async def by_planner(nodes: Sequence[Node], _: Forest) -> list[float]:
    """Return the planner's grades of states."""
    return [grade(node) for node in nodes]


def by_rollouts(temperature: float, n: int) -> Grade:
    """Grade states by V^pi: the mean return of n continuations at a temperature."""

    async def graded(nodes: Sequence[Node], forest: Forest) -> list[float]:
        return list(map(float, await Rollouts(forest, temperature, n).values(nodes)))

    return graded


def grades_of(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    make: Callable[[], Environment],
    policy: Policy,
    how: Grade,
    path: Path,
) -> dict[Key, float]:
    """Grade every unfinished state by playing its actions again, and append each task's grades to a file. Resumes.

    Args:
        trajectories: of the training.
        tasks: id -> task, with its payload.
        make: creates a world, which is deterministic.
        policy: plays the continuations.
        how: grades.
        path: the file.
    """
    of_task = defaultdict[str, list[Trajectory]](list)
    for trajectory in trajectories:
        of_task[trajectory.task.id].append(trajectory)
    done = {line["task"] for line in read(path)}
    path.parent.mkdir(parents=True, exist_ok=True)
    for task_id in (known for known in of_task if known not in done):
        forest = Forest(policy, tasks[task_id], make, 0)
        states = asyncio.run(_graded(tasks[task_id], of_task[task_id], forest, how))
        with path.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"task": task_id, "states": [[list(turns), value] for turns, value in states]}) + "\n"
            )
    return {(line["task"], tuple(turns)): value for line in read(path) for turns, value in line["states"]}


async def _graded(
    task: Task, trajectories: Sequence[Trajectory], forest: Forest, how: Grade
) -> list[tuple[tuple[str, ...], float]]:
    nodes: dict[tuple[str, ...], Node] = {}
    for trajectory in trajectories:
        node = await forest.root()
        for (_, turns), step in zip(_keys(trajectory)[:-1], trajectory.steps, strict=True):
            nodes[turns] = node
            node = await forest.after(node, turn(step))
            if (answer := node.trajectory.steps[-1].observation) != step.observation:
                raise ValueError(f"{task.id}: {step.action!r} answered {answer!r}, not as recorded")
    return list(zip(nodes, await how(list(nodes.values()), forest), strict=True))


def _keys(trajectory: Trajectory) -> list[Key]:
    turns = tuple(map(turn, trajectory.steps))
    return [(trajectory.task.id, turns[:length]) for length in range(len(turns) + 1)]
