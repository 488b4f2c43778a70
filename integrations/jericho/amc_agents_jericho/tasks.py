"""Tasks: story files of the user, and generated games."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from amc_agents.envs.registry import WorldSpec
from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_jericho.keep import MAX_SCORE, KeepExpert, compile_game, generate_layout
from amc_agents_jericho.story import Story
from amc_agents_jericho.world import RULES, GameTask, JerichoWorld

SPLITS = ("train", "test")
SEEDS_PER_SPLIT = 1_000_000
STORIES_VARIABLE = "AMC_JERICHO_STORIES"
"""Environment variable with the path of a story file, or of a folder of story files."""
KEEP_HORIZON = 40
_KEEP_COMMANDS = (
    *("north", "south", "east", "west", "look", "wait"),
    *("take sword", "take key", "take crown", "drop sword", "drop key", "drop crown", "attack goblin"),
)


def story_task(path: str | Path, seed: int = 0, max_score: int | None = None) -> Task:
    """Return a task of a story file, with random numbers from the seed.

    Args:
        path: the story file.
        seed: seed of the game's random numbers.
        max_score: score that pays 1 in all; None: Jericho's maximum, or score points if Jericho does not know the game.

    Raises:
        ConfigurationError: the file is missing, or no Z-machine story.
    """
    payload = GameTask(str(path), seed, max_score)
    return Task(f"jericho/{Path(path).name}/{seed}", _instruction(payload), payload)


def story_tasks(n_tasks: int, split: str, first: int = 0) -> Iterator[Task]:
    """Return tasks of the stories that `AMC_JERICHO_STORIES` names: each story in turn, with a seed per round.

    Raises:
        ConfigurationError: the variable is not set, or names no story; the split does not exist.
    """
    stories, start = _stories(), _first_seed(split)
    for number in range(first, first + n_tasks):
        yield story_task(stories[number % len(stories)], start + number // len(stories))


def generate_tasks(n_tasks: int, split: str, first: int = 0) -> Iterator[Task]:
    """Generate games, each with another map. Needs Inform 6.

    Raises:
        ConfigurationError: Inform 6 is not installed; the split does not exist.
    """
    start = _first_seed(split)
    for number in range(first, first + n_tasks):
        seed = start + number
        story = str(compile_game(seed))
        payload = GameTask(story, seed, MAX_SCORE, KeepExpert(generate_layout(seed)), _KEEP_COMMANDS)
        yield Task(f"jericho-keep/{split}/{number}", _instruction(payload), payload)


def _instruction(payload: GameTask) -> str:
    story = Story(payload.story, payload.seed)
    try:
        return f"{RULES}\n{story.start()}"
    finally:
        story.close()


def _first_seed(split: str) -> int:
    if split not in SPLITS:
        raise ConfigurationError(f"expected a split of {', '.join(SPLITS)}, got {split!r}")
    return SPLITS.index(split) * SEEDS_PER_SPLIT


def _stories() -> list[Path]:
    named = os.environ.get(STORIES_VARIABLE, "")
    path = Path(named)
    stories = sorted(path.glob("*.z[1-8]")) if path.is_dir() else [path]
    if not named or not stories:
        raise ConfigurationError(
            f"the world jericho needs story files: set {STORIES_VARIABLE} to a .z3, .z5 or .z8 file or to their "
            f"folder, got {named!r}"
        )
    return stories


JERICHO = WorldSpec(JerichoWorld, story_tasks, horizon=100)
"""The user's story files: the entry point `jericho`."""
KEEP = WorldSpec(JerichoWorld, generate_tasks, horizon=KEEP_HORIZON)
"""Generated games: the entry point `jericho-keep`."""
