"""Tasks: generated rooms, and ALFWorld's own games where they are installed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_alfworld.rooms import TASK_TYPES, generate_room, problem
from amc_agents_alfworld.world import (
    HORIZON,
    AlfworldTask,
    AlfworldWorld,
    game_data,
    read_game,
    shown,
    started,
)

SPLITS = ("train", "test")
SEEDS_PER_SPLIT = 1_000_000
DATA_VARIABLE = "ALFWORLD_DATA"
"""ALFWorld's own environment variable: the folder of its data."""
OFFICIAL_SPLITS = {"train": "train", "dev": "valid_seen", "test": "valid_unseen"}
"""Split -> folder of ALFWorld's data."""
OFFICIAL_HORIZON = 50


def generate_tasks(
    n_tasks: int, split: str, first: int = 0, *, task_types: Sequence[str] = TASK_TYPES
) -> Iterator[Task]:
    """Generate rooms, one task type after the other.

    Args:
        n_tasks: number of tasks.
        split: "train" or "test"; they share no seed.
        first: number of the first task of the split.
        task_types: some of `TASK_TYPES`.

    Raises:
        ConfigurationError: the split or a task type does not exist.
    """
    if split not in SPLITS or not set(task_types) <= set(TASK_TYPES):
        raise ConfigurationError(
            f"expected a split of {', '.join(SPLITS)} and task types of {', '.join(TASK_TYPES)}, got {split!r} and "
            f"{', '.join(task_types)}"
        )
    return (_generated(split, number, task_types) for number in range(first, first + n_tasks))


def official_tasks(n_tasks: int, split: str, first: int = 0) -> Iterator[Task]:
    """Read ALFWorld's own games, in a fixed mixed order. Movable receptacles and slicing are left out, as in ALFWorld.

    Args:
        n_tasks: number of tasks.
        split: "train", "dev" (`valid_seen`) or "test" (`valid_unseen`).
        first: number of the first task of the split.

    Raises:
        ConfigurationError: `ALFWORLD_DATA` is not set, or has no such games; the split does not exist.
    """
    if split not in OFFICIAL_SPLITS:
        raise ConfigurationError(f"expected a split of {', '.join(OFFICIAL_SPLITS)}, got {split!r}")
    data = os.environ.get(DATA_VARIABLE, "")
    games = _games(data, OFFICIAL_SPLITS[split])
    if not games:
        raise ConfigurationError(
            f"the world alfworld-official needs ALFWorld's games: run alfworld-download, and set {DATA_VARIABLE} to "
            f"its folder, got {data!r}"
        )
    return (_official(games[number]) for number in range(first, min(first + n_tasks, len(games))))


@lru_cache(maxsize=4)
def _games(data: str, folder: str) -> tuple[tuple[str, Path], ...]:
    """Return (task type, file) of each playable game."""
    games = []
    for path in sorted(Path(data, "json_2.1.1", folder).glob("*/*/game.tw-pddl")) if data else ():
        name = path.parent.parent.name
        task_type = name.split("-")[0]
        if task_type in TASK_TYPES and "Sliced" not in name and _is_solvable(path):
            games.append((task_type, path))
    # The folders are sorted by type; the names of the trials are mixed.
    return tuple(sorted(games, key=lambda game: game[1].parent.name))


def _is_solvable(path: Path) -> bool:
    return bool(json.loads(path.read_text(encoding="utf-8")).get("solvable"))


def _generated(split: str, number: int, task_types: Sequence[str]) -> Task:
    task_type = task_types[number % len(task_types)]
    room = generate_room(task_type, SPLITS.index(split) * SEEDS_PER_SPLIT + number)
    payload = AlfworldTask(game_data(problem(room), room.description), task_type)
    return Task(f"alfworld/{split}/{task_type}/{number}", _instruction(payload), payload)


def _official(game: tuple[str, Path]) -> Task:
    task_type, path = game
    payload = AlfworldTask(read_game(path), task_type)
    return Task(f"alfworld/{path.parent.parent.name}/{path.parent.name}", _instruction(payload), payload)


def _instruction(payload: AlfworldTask) -> str:
    game, state = started(payload.game)
    game.close()
    return shown(state.feedback)


MODEL = Path(__file__).parent / "model"
"""Folder of the small policy of generated rooms, with its value model: `EmbeddedChatModel(model=str(MODEL))`."""
ALFWORLD = WorldSpec(AlfworldWorld, generate_tasks, horizon=HORIZON, model=str(MODEL), unseen_from=100_000)
"""Generated rooms: the entry point `alfworld`."""
OFFICIAL = WorldSpec(AlfworldWorld, official_tasks, horizon=OFFICIAL_HORIZON)
"""ALFWorld's own games: the entry point `alfworld-official`."""
