"""A Z-machine game in Jericho's interpreter: text, score and end after each command, and a state that can be copied."""

# mypy: allow-untyped-calls

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jericho import FrotzEnv
from jericho.jericho import UnsupportedGameWarning

from amc_agents.errors import ConfigurationError

_STATUS = re.compile(r"\A>[^\n]*(?:Score|Time):[^\n]*\n|\n>[^\n]*\Z|[ ]{20,}[^\n]*\Z")
"""The prompt with the status line, which the interpreter prints after it, or before the answer in version 3."""
_STATUS_SCORE = re.compile(r"Score:\s*(-?\d+)\s*(?:Moves|Turns|Time)?[^\n]*\Z")
_FINAL_SCORE = re.compile(r"scored\s+(-?\d+)\s+(?:points\s+)?out\s+of")
_ENDING = re.compile(r"^\s*\*{3,4}\s+(.+?)\s+\*{3,4}\s*$", re.MULTILINE)
_LONGEST_COMMAND = 190
"""Characters of a command; Jericho truncates to 198 bytes."""
_NOT_ASCII = re.compile(r"[^\x20-\x7e]+")


class Reply(NamedTuple):
    """The game's answer to a command."""

    text: str
    score: int
    ended: bool
    won: bool
    """True if the game ended in victory."""


class Story:
    """A running game. Jericho knows score and end of the games that it supports; of others, they are read as follows.

    The score is the second global variable in versions 1 to 3 of the Z-machine, by its standard, and later the number
    in the status line or in the final message. The end is a line between asterisks, as in `*** You have won ***`.

    Args:
        path: a story file (.z3, .z5, .z8).
        seed: seed of the game's random numbers.

    Raises:
        ConfigurationError: there is no such file, or it is no Z-machine story.
    """

    def __init__(self, path: str | Path, seed: int) -> None:
        self._path = _checked(Path(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnsupportedGameWarning)
            self._game = FrotzEnv(str(self._path), seed=_random_state(seed))
            self._supported = bool(self._game.is_fully_supported)
        self._score = 0

    @property
    def max_score(self) -> int | None:
        """The maximum score, if Jericho supports the game."""
        return int(self._game.get_max_score()) if self._supported else None

    @property
    def walkthrough(self) -> tuple[str, ...]:
        """Jericho's solution of the game, if it has one."""
        return tuple(self._game.get_walkthrough()) if self._supported else ()

    def start(self) -> str:
        """Start the game, and return its first text."""
        text, _ = self._game.reset()
        return _shown(text)

    def command(self, text: str) -> Reply:
        """Execute a command."""
        printed, _, ended, _ = self._game.step(_typed(text))
        self._score = self._read_score(printed)
        if self._supported:
            return Reply(_shown(printed), self._score, bool(ended), bool(self._game.victory()))
        ending = _ENDING.search(printed)
        return Reply(_shown(printed), self._score, ending is not None, bool(ending and "won" in ending[1].lower()))

    def copy(self, seed: int) -> Story:
        """Copy the game in its current state, with other random numbers from now on."""
        twin = Story(self._path, seed)
        *state, (_, interval, counter), narrative = self._game.get_state()
        # Frotz draws from the first number, unless the game itself has asked for a predictable sequence.
        twin._game.set_state((*state, (_random_state(seed), interval, counter), narrative))
        twin._score = self._score
        return twin

    def close(self) -> None:
        """Free the interpreter's memory."""
        self._game.close()

    def _read_score(self, printed: str) -> int:
        if self._supported:
            return int(self._game.get_score())
        memory = self._game.get_state()[0]
        if memory[0] <= 3:
            # The table of global variables starts at the address in bytes 12 and 13; the second is the score.
            first = _word(memory, 12)
            return _signed(_word(memory, first + 2))
        match = _FINAL_SCORE.search(printed) or _STATUS_SCORE.search(printed)
        return int(match[1]) if match else self._score


def _checked(path: Path) -> Path:
    if not path.is_file():
        raise ConfigurationError(f"there is no story file {path}: give the path of a .z3, .z5 or .z8 file")
    with path.open("rb") as file:
        header = file.read(64)
    if len(header) < 64 or not 1 <= header[0] <= 8:
        raise ConfigurationError(f"{path} is not a Z-machine story: expected a version from 1 to 8 in its first byte")
    return path


def _random_state(seed: int) -> int:
    """Return a nonzero 31-bit state of Frotz's generator; Jericho takes 0 for no seed."""
    # Mixed, because the generator's first numbers are alike for neighbouring states.
    return int(np.random.default_rng(seed).integers(1, 2**31))


def _shown(printed: str) -> str:
    return _STATUS.sub("", printed.rstrip()).strip()


def _typed(text: str) -> str:
    # The interpreter reads a line of ASCII.
    return _NOT_ASCII.sub(" ", text[:_LONGEST_COMMAND]).strip()


def _word(memory: Any, address: int) -> int:
    return int(memory[address]) * 256 + int(memory[address + 1])


def _signed(word: int) -> int:
    return word - 0x10000 if word >= 0x8000 else word
