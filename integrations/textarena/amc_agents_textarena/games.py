"""The worlds of this package: any solo game by its id, and five that are registered by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Literal

from amc_agents.envs import CopyFork, ProcessWorld
from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Environment, Task
from amc_agents_textarena.world import TextArenaTask, TextArenaWorld

SPLITS = ("train", "test")
SEEDS_PER_SPLIT = 100_000_000


def textarena_world(
    game: str, *, horizon: int = 50, success: float = 1.0, fork: Literal["copy", "process"] = "copy"
) -> WorldSpec:
    """Describe a solo game as a world, ready for `amc()`, `amc bench` and an entry point.

    Args:
        game: the game's id, for example `LightsOut-v0`.
        horizon: maximum number of steps; games have limits of their own too.
        success: smallest return that counts as a success.
        fork: "copy" copies the game by `copy.deepcopy`; "process" keeps each particle's game in a process of its own.

    Raises:
        ConfigurationError: `fork` is unknown.
    """
    if fork not in ("copy", "process"):
        raise ConfigurationError(f"fork must be copy or process, got {fork!r}")

    def make() -> Environment:
        return CopyFork(TextArenaWorld()) if fork == "copy" else ProcessWorld(TextArenaWorld)

    return WorldSpec(make, partial(_tasks, game), horizon, success=success)


def _tasks(game: str, n_tasks: int, split: str, first: int) -> Iterator[Task]:
    if split not in SPLITS or first < 0 or first + n_tasks > SEEDS_PER_SPLIT:
        raise ConfigurationError(
            f"expected a split of {', '.join(SPLITS)} and numbers from 0 to {SEEDS_PER_SPLIT - 1}, got {split!r} and "
            f"{first} to {first + n_tasks - 1}"
        )
    for number in range(first, first + n_tasks):
        payload = TextArenaTask(game, SPLITS.index(split) * SEEDS_PER_SPLIT + number)
        yield Task(f"{_slug(game)}/{split}/{number}", TextArenaWorld().start(payload), payload)


def _slug(game: str) -> str:
    return "textarena-" + re.sub(r"(?<=[a-z])(?=[A-Z])", "-", game.removesuffix("-v0")).lower()


GAME_2048 = textarena_world("2048-v0", horizon=200)
"""The entry point `textarena-2048`: new tiles are random."""
LIGHTS_OUT = textarena_world("LightsOut-v0", horizon=50)
"""The entry point `textarena-lights-out`."""
MASTERMIND = textarena_world("Mastermind-v0", horizon=20)
"""The entry point `textarena-mastermind`."""
MINESWEEPER = textarena_world("Minesweeper-v0", horizon=100)
"""The entry point `textarena-minesweeper`: mines are placed at the first move."""
SOKOBAN = textarena_world("Sokoban-v0", horizon=60)
"""The entry point `textarena-sokoban`."""
