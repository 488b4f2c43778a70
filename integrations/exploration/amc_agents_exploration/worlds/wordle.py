"""Wordle (LLM-PSRL, section 5.2.1): a hidden word of five different letters, entered letter by letter."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Task
from amc_agents_exploration.worlds.hidden_sequence import HiddenSequence
from amc_agents_exploration.worlds.world import drawn_seed, task_rng

LENGTH = 5


@dataclass(frozen=True, kw_only=True)
class Wordle(HiddenSequence):
    """A hidden word. An attempt need not be a word."""

    symbols: ClassVar[str] = string.ascii_lowercase
    solved: ClassVar[str] = "That is the word."
    unsolved: ClassVar[str] = "That is not the word."

    words: tuple[str, ...]
    """List from which the hidden word was drawn."""


def wordle_task(seed: int, split: str = "train", *, words: Sequence[str] | None = None) -> Task:
    """Create a task whose word is drawn uniformly from a list.

    Args:
        seed: any non-negative integer.
        split: name of the seed stream.
        words: the possible words, filtered by `usable_words`; None for the library's small list.
    """
    rng = task_rng(split, seed)
    known = WORDS if words is None else usable_words(words)
    instance = Wordle(answer=known[int(rng.integers(len(known)))], words=known, seed=drawn_seed(rng))
    return Task(f"wordle/{split}/{seed}", _RULES, instance)


def load_words(path: Path | str) -> tuple[str, ...]:
    """Load the usable words of a file with a word per line.

    Raises:
        ConfigurationError: the file cannot be read or has no usable word.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the word list {quoted(str(path), 200)} cannot be read: {error}") from error
    return usable_words(lines)


def usable_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words of five different letters a to z, in lower case, sorted and without duplicates.

    Raises:
        ConfigurationError: no word is usable.
    """
    candidates = {word.lower() for word in words if len(set(word.lower())) == len(word) == LENGTH}
    usable = tuple(sorted(word for word in candidates if set(word) <= set(string.ascii_lowercase)))
    if not usable:
        raise ConfigurationError("expected a list with words of five different letters a to z, got none: add some")
    return usable


_RULES = """\
An English word of five different letters is hidden. In each episode you enter one attempt, letter by letter, from \
place 1 to place 5; it need not be a word. After each letter you are told whether it is in the right place, occurs \
in the word but in another place, or does not occur in it.
An attempt that is the hidden word earns 1, any other 0. The word stays the same in all episodes: enter it in as \
many of them as you can.
An action is one letter, a to z; you may enter a letter more than once. Anything else loses the place."""

WORDS = usable_words(
    """
    acorn actor adopt angle ankle apron basin beach begin black blend board brain brave bread brick bring brown brush
    cabin candy chair chalk charm chest claim clean clear cliff climb clock cloud coast cough count cream crowd crown
    dance diary doubt dream drink earth eight fable faint field flame flock flute frame fresh fruit ghost giant globe
    grain grape green group guest habit heart horse hotel house image ivory joint judge juice knife laugh lemon light
    lucky lunch magic maple march medal mixer money month mouth movie music night noise north novel ocean olive opera
    orbit order paint party peach pearl phone piano pilot place plane plant point pound power pride print prize quick
    quiet radio ranch reach rhyme right river robin rough round royal salty scale scent scout shade shape share sharp
    shirt short sight skirt slate slide smart smile smoke snail solid sound south space spicy spine split sport stage
    stamp stand steam stone storm story sugar swing table thick tiger toast today touch towel tower track trade trail
    train truck trunk uncle unity urban value video virus visit voice wagon waist waste watch water whale wheat white
    world wound woman wrist write yacht young youth zebra
""".split()
)
