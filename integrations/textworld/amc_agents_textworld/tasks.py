"""Tasks: generated games, and TextWorld games of the user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_textworld.games import GameSize, generated_game
from amc_agents_textworld.world import HORIZON, TextWorldTask, TextWorldWorld, instruction, started

SPLITS = ("train", "test")
SEEDS_PER_SPLIT = 1_000_000


def generate_tasks(n_tasks: int, split: str, first: int = 0, *, size: GameSize | None = None) -> Iterator[Task]:
    """Generate games, or read those that were generated before.

    Args:
        n_tasks: number of tasks.
        split: "train" or "test"; they share no seed.
        first: number of the first task of the split.
        size: size of the games; None: 4 rooms, 6 objects, 2 quests of 4 commands.

    Raises:
        ConfigurationError: the split does not exist, or TextWorld cannot generate such a game.
    """
    if split not in SPLITS:
        raise ConfigurationError(f"expected a split of {', '.join(SPLITS)}, got {split!r}")
    start = 1 + SPLITS.index(split) * SEEDS_PER_SPLIT
    for number in range(first, first + n_tasks):
        yield _task(f"textworld/{split}/{number}", generated_game(start + number, size))


def story_task(story: str | Path) -> Task:
    """Return a task of a game that `tw-make` made. Raises `ConfigurationError`."""
    return _task(f"textworld/{Path(story).name}", story)


def _task(name: str, story: str | Path) -> Task:
    game, state = started(str(story))
    game.close()
    return Task(name, instruction(state), TextWorldTask(str(story)))


MODEL = Path(__file__).parent / "model"
"""Folder of the small policy of generated games: `EmbeddedChatModel(model=str(MODEL))`."""
TEXTWORLD = WorldSpec(TextWorldWorld, generate_tasks, horizon=HORIZON, model=str(MODEL), unseen_from=100_000)
"""Generated games: the entry point `textworld`."""
