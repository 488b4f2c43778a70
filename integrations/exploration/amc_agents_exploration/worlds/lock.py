"""The combination lock (LLM-PSRL, section 5.2.1): a code of three different digits, entered digit by digit."""

from __future__ import annotations

import string
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar

from amc_agents.types import Task
from amc_agents_exploration.worlds.hidden_sequence import HiddenSequence
from amc_agents_exploration.worlds.world import drawn_seed, task_rng

CODES = tuple("".join(code) for code in permutations(string.digits, 3))
"""All 720 codes in ascending order."""


@dataclass(frozen=True, kw_only=True)
class CombinationLock(HiddenSequence):
    """A lock with a code of three different digits."""

    symbols: ClassVar[str] = string.digits
    solved: ClassVar[str] = "The lock opens."
    unsolved: ClassVar[str] = "The lock stays shut."


def lock_task(seed: int, split: str = "train") -> Task:
    """Create a lock whose code is drawn uniformly from all 720 codes."""
    rng = task_rng(split, seed)
    instance = CombinationLock(answer=CODES[int(rng.integers(len(CODES)))], seed=drawn_seed(rng))
    return Task(f"combination-lock/{split}/{seed}", _RULES, instance)


_RULES = """\
A lock opens with a code of three different digits; every such code is equally likely. In each episode you enter one \
attempt, digit by digit: first the digit for place 1, then place 2, then place 3. After each digit you are told \
whether it is in the right place, occurs in the code but in another place, or does not occur in it.
An attempt that opens the lock earns 1, any other 0. The code stays the same in all episodes: open the lock in as \
many of them as you can.
An action is one digit, 0 to 9; you may enter a digit more than once. Anything else loses the place."""
