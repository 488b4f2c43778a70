"""What can be known of a combination lock, up to the names of the digits, and how an entered digit changes it.

Of each digit two things can be known: the places where it may still be, and whether it surely occurs. Feedback says
nothing else, so these statuses are a sufficient statistic; which digit has which status does not matter for planning.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from amc_agents.envs.exploration import CODES, FEEDBACKS, Feedback
from amc_agents.types import IntArray

Knowledge = tuple[int, ...]
"""Ten statuses, one a digit: bits 0 to 2 are the places where it may be, bit 3 says that it surely occurs."""
UNTRIED = 7
"""Status of a digit of which nothing is known."""
OCCURS = 8
NOTHING_KNOWN: Knowledge = (UNTRIED,) * 10
_CODES: IntArray = np.array([[int(digit) for digit in code] for code in CODES])


class Outcome(NamedTuple):
    """One thing that an entered digit may show."""

    feedback: Feedback
    n_codes: int
    """Codes that would show it."""
    knowledge: Knowledge
    """What is known then, digit by digit."""


@cache
def n_consistent(knowledge: Knowledge) -> int:
    """Codes that are possible."""
    return len(_consistent(knowledge))


@lru_cache(maxsize=4096)
def outcomes(knowledge: Knowledge, place: int, digit: int) -> tuple[Outcome, ...]:
    """What entering `digit` at `place` may show, each with the knowledge after it."""
    codes = _consistent(knowledge)
    here = codes[:, place] == digit
    occurs = (codes == digit).any(axis=1)
    shown = zip(FEEDBACKS, (here, occurs & ~here, ~occurs), strict=True)
    return tuple(Outcome(told, int(which.sum()), _statuses(codes[which])) for told, which in shown if which.any())


def _consistent(knowledge: Knowledge) -> IntArray:
    statuses = np.array(knowledge)
    possible = (statuses[_CODES] >> np.arange(3) & 1).all(axis=1)
    # A code holds as many of the sure digits as there are.
    possible &= (statuses[_CODES] >= OCCURS).sum(axis=1) == (statuses >= OCCURS).sum()
    consistent: IntArray = _CODES[possible]
    return consistent


def _statuses(codes: IntArray) -> Knowledge:
    where = (codes[:, None, :] == np.arange(10)[:, None]).astype(np.int64)  # [codes, digits, places]
    may_be = where.any(axis=0) @ np.array([1, 2, 4])
    occurs = where.any(axis=2).all(axis=0)
    return tuple((may_be + OCCURS * occurs).tolist())


class Branch(NamedTuple):
    """An `Outcome` up to the names of the digits."""

    right: bool
    chance: float
    knowledge: Knowledge
    """Sorted."""


@cache
def branches(knowledge: Knowledge, place: int) -> dict[int, tuple[Branch, ...]]:
    """By status of the entered digit: what may be shown. `knowledge` is sorted; digits of one status are alike."""
    total = n_consistent(knowledge)
    found = {}
    for status in sorted(set(knowledge)):
        shown = outcomes(knowledge, place, knowledge.index(status))
        found[status] = tuple(
            Branch(one.feedback == "right", one.n_codes / total, tuple(sorted(one.knowledge))) for one in shown
        )
    return found
