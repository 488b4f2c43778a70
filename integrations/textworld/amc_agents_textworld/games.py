"""Generate TextWorld games, and keep their story files."""

# mypy: allow-untyped-calls

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import textworld
from textworld.version import __version__

from amc_agents.errors import ConfigurationError

GAMES_VARIABLE = "AMC_TEXTWORLD_GAMES"
"""Environment variable with the folder of generated games; default: `~/.cache/amc-agents/textworld`."""


@dataclass(frozen=True)
class GameSize:
    """Size of a generated game."""

    n_rooms: int = 4
    n_objects: int = 6
    quest_length: int = 4
    """Number of commands of a quest."""
    n_quests: int = 2
    """Number of quests, each worth a point."""


def generated_game(seed: int, size: GameSize | None = None) -> Path:
    """Return the story file of a game; generate and compile it if it is not in the folder of games yet.

    Generation takes a few seconds, and is deterministic for a version of TextWorld.

    Raises:
        ConfigurationError: TextWorld could not generate a game of this size.
    """
    size = size or GameSize()
    numbers = (size.n_rooms, size.n_objects, size.quest_length, size.n_quests, seed)
    folder = games_folder() / f"{__version__}-{'-'.join(map(str, numbers))}"
    story = folder / "game.z8"
    if not story.is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The story and its description belong together: both appear at once.
        unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-"))
        try:
            _make(seed, size, unfinished / story.name)
            _move(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return story


def games_folder() -> Path:
    """Return the folder of generated games."""
    named = os.environ.get(GAMES_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "amc-agents" / "textworld"


def _make(seed: int, size: GameSize, story: Path) -> None:
    options = textworld.GameOptions()
    options.seeds, options.path = seed, str(story)
    options.nb_rooms, options.nb_objects = size.n_rooms, size.n_objects
    options.quest_length, options.nb_parallel_quests = size.quest_length, size.n_quests
    try:
        textworld.make(options)
    except Exception as error:
        raise ConfigurationError(
            f"TextWorld could not generate a game with seed {seed} and {size}: {type(error).__name__}: {error}"[:400]
        ) from error


def _move(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # Otherwise another process has made the same game.
            raise
