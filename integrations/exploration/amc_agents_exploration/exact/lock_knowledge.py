"""Knowledge about the code of a combination lock, up to the names of the digits, and its update by feedback.

The status of a digit is the set of places where it may still be, and whether it certainly occurs. Feedback carries no
other information, so the statuses are a sufficient statistic. Planning does not depend on which digit has which status.
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from amc_agents.types import IntArray
from amc_agents_exploration.worlds import CODES, FEEDBACKS, Feedback

Knowledge = tuple[int, ...]
"""A status per digit: bits 0 to 2 are the places where it may be, bit 3 is set if it certainly occurs."""
UNTRIED = 7
"""Status of a digit about which nothing is known."""
OCCURS = 8
NOTHING_KNOWN: Knowledge = (UNTRIED,) * 10
_CODES: IntArray = np.array([[int(digit) for digit in code] for code in CODES])


class Outcome(NamedTuple):
    """A possible feedback for an entered digit."""

    feedback: Feedback
    n_codes: int
    """Number of codes that give this feedback."""
    knowledge: Knowledge
    """Knowledge after the feedback, digit by digit."""


@cache
def n_consistent(knowledge: Knowledge) -> int:
    """Return the number of codes consistent with the knowledge."""
    return len(_consistent(knowledge))


@lru_cache(maxsize=4096)
def outcomes(knowledge: Knowledge, place: int, digit: int) -> tuple[Outcome, ...]:
    """Return the possible outcomes of entering `digit` at `place`."""
    codes = _consistent(knowledge)
    here = codes[:, place] == digit
    occurs = (codes == digit).any(axis=1)
    shown = zip(FEEDBACKS, (here, occurs & ~here, ~occurs), strict=True)
    return tuple(
        Outcome(feedback, int(which.sum()), _statuses(codes[which])) for feedback, which in shown if which.any()
    )


def _consistent(knowledge: Knowledge) -> IntArray:
    statuses = np.array(knowledge)
    possible = (statuses[_CODES] >> np.arange(3) & 1).all(axis=1)
    # A code contains every digit that certainly occurs.
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
    """Sorted statuses."""


@cache
def branches(knowledge: Knowledge, place: int) -> dict[int, tuple[Branch, ...]]:
    """Return the possible branches by status of the entered digit, given sorted knowledge."""
    total = n_consistent(knowledge)
    return {
        status: tuple(
            Branch(outcome.feedback == "right", outcome.n_codes / total, tuple(sorted(outcome.knowledge)))
            for outcome in outcomes(knowledge, place, knowledge.index(status))
        )
        for status in sorted(set(knowledge))
    }
