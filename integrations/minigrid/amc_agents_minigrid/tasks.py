"""Generate tasks from seeds, in splits that share no seed, selected by the number of steps of the expert."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_minigrid.expert import Expert
from amc_agents_minigrid.levels import GO_TO_LOCAL, PICKUP_LOCAL, make_level
from amc_agents_minigrid.world import ACTIONS, HORIZON, BabyAITask, BabyAIWorld, instruction

SPLITS = ("policy", "train", "test")
"""Splits for training the shipped model, for critics and settings, and for reported results."""
SEEDS_PER_SPLIT = 100_000_000
MODEL = Path(__file__).parent / "model"
"""Folder of the small policy that plays go-to and pick-up: `EmbeddedChatModel(model=str(MODEL))`."""
BAND = (3, HORIZON)
"""Range of the expert's steps for the tasks of the registered worlds."""
LEAST_RETURN = 0.05
"""Lower bound on the return of a success: 1 - 0.9 in the last step, and more in earlier steps."""
ORACLE = "amc_agents_minigrid.oracle:ExpertCritic"
"""Critic that counts the steps that the expert still needs, for upper bounds."""


def generate_task(level: str, number: int, split: str = "train", *, horizon: int = HORIZON) -> Task:
    """Generate one task, deterministically from the arguments.

    Args:
        level: the level's id in Gymnasium's registry.
        number: from 0 to `SEEDS_PER_SPLIT` - 1; the seed is this number plus the first seed of the split.
        split: "policy", "train" or "test".
        horizon: number of steps after which the world truncates the episode.

    Raises:
        ConfigurationError: the level, split or number does not exist.
    """
    if split not in SPLITS or not 0 <= number < SEEDS_PER_SPLIT:
        raise ConfigurationError(
            f"expected a split of {', '.join(SPLITS)} and a number from 0 to {SEEDS_PER_SPLIT - 1}, "
            f"got {split!r} and {number}"
        )
    seed = SPLITS.index(split) * SEEDS_PER_SPLIT + number
    text = instruction(make_level(level, seed, horizon))
    return Task(f"{level}/{split}/{number}", text, BabyAITask(level, seed, horizon))


def task_of(name: str) -> Task:
    """Restore a task from its id, for datasets, which store no payload. The horizon is `HORIZON`.

    Raises:
        ConfigurationError: the id is not that of a generated task.
    """
    level, split, number = [*name.rsplit("/", 2), "", ""][:3]
    if not number.isdecimal():
        raise ConfigurationError(f"expected a task's id such as {GO_TO_LOCAL}/train/7, got {name!r}")
    return generate_task(level, int(number), split)


def generate_tasks(
    level: str,
    n_tasks: int,
    split: str = "train",
    first: int = 0,
    *,
    expert_steps: tuple[int, int] = (1, HORIZON),
    horizon: int = HORIZON,
) -> Iterator[Task]:
    """Generate `n_tasks` tasks, from number `first` on, for which the expert's steps are in a range (ends included).

    Raises:
        ConfigurationError: as for `generate_task`, or the range is impossible.
    """
    low, high = expert_steps
    if not 1 <= low <= min(high, horizon):
        raise ConfigurationError(f"expected expert_steps between 1 and the horizon of {horizon}, got {low} to {high}")
    candidates = (generate_task(level, number, split, horizon=horizon) for number in count(first))
    counted = (_counted(task) for task in candidates)
    return islice((task for task, steps in counted if low <= steps <= high), n_tasks)


def go_to(n_tasks: int, split: str, first: int) -> Iterator[Task]:
    """Tasks of the world `babyai-go-to`."""
    return generate_tasks(GO_TO_LOCAL, n_tasks, split, first, expert_steps=BAND)


def pick_up(n_tasks: int, split: str, first: int) -> Iterator[Task]:
    """Tasks of the world `babyai-pick-up`."""
    return generate_tasks(PICKUP_LOCAL, n_tasks, split, first, expert_steps=BAND)


GO_TO = WorldSpec(
    BabyAIWorld, go_to, HORIZON, model=str(MODEL), success=LEAST_RETURN, oracle=ORACLE, actions=tuple(ACTIONS),
    unseen_from=100_000,
)  # fmt: skip
"""Go to one of eight objects in a room: the entry point `babyai-go-to`."""
PICK_UP = replace(GO_TO, tasks=pick_up)
"""Pick up one of eight objects in a room: the entry point `babyai-pick-up`."""


def _counted(task: Task) -> tuple[Task, int]:
    """The task with the expert's number of steps; more than the horizon if the expert does not finish in time."""
    payload: BabyAITask = task.payload
    level = make_level(payload.level, payload.seed, payload.horizon)
    expert = Expert(level)
    steps = 0
    over = solved = False
    while not over:
        steps += 1
        _, _, solved, cut, _ = level.step(ACTIONS[expert.turn().action])
        over = solved or cut
    steps = steps if solved else steps + 1
    return replace(task, payload=replace(payload, expert_steps=steps)), steps
