"""The critique in words, and what the agent says to it (PNLC, section 4.2).

The agent is told how likely good and bad outcomes are, and keeps its thought or writes a better one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from amc_agents.pnlc.types import Goal


def critique_of_goals(goals: Sequence[Goal], *, by_critic: bool = True) -> str:
    """Goals with their likelihoods, as the agent is told.

    Args:
        goals: the good ones first.
        by_critic: False where the model itself said how likely they are.
    """
    title = OUTCOMES if by_critic else OWN_OUTCOMES
    lines = [f"- {'good' if one.positive else 'bad'}, likelihood {one.likelihood:.2f}: {one.text}" for one in goals]
    return "\n".join((title, *lines))


def critique_of_value(likelihood: float) -> str:
    """The likelihood of success alone, as the agent is told."""
    return SUCCESS.format(likelihood=likelihood)


def score_of(goals: Sequence[Goal]) -> float:
    """The mean likelihood of the good outcomes less that of the bad ones, in [-1, 1]; of one kind alone, its own part.

    >>> score_of([Goal("won", True, 0.75), Goal("stuck", False, 0.5), Goal("lost", False, 0.0)])
    0.5
    """
    good = [one.likelihood for one in goals if one.positive]
    bad = [one.likelihood for one in goals if not one.positive]
    return float((np.mean(good) if good else 0.0) - (np.mean(bad) if bad else 0.0))


def read_reply(text: str) -> str | None:
    r"""The better thought, empty where the agent keeps its own; None where neither can be read.

    >>> read_reply("Diagnosis: It is locked.\nDecision: REFINE\nThought: I look for the key first.")
    'I look for the key first.'
    >>> read_reply("Diagnosis: Fine.\nDecision: KEEP")
    ''
    """
    decisions = list(_DECISION.finditer(text))
    if not decisions:
        return None
    last = decisions[-1]
    if last[1].upper() == "KEEP":
        return ""
    thought = _THOUGHT.search(text, last.end())
    if thought is None:
        return None
    # An action that is written too is not taken: it comes from the final thought.
    action = _ACTION.search(text, thought.end())
    return text[thought.end() - 1 : action.start() if action else None].rstrip()


def read_likelihoods(text: str, n: int) -> list[float] | None:
    r"""`[n]` numbers from 0 to 1, one per goal in order; None where they are not all there.

    >>> read_likelihoods("1: 0.9\n2: .25", 2)
    [0.9, 0.25]
    >>> read_likelihoods("1: 90 %", 1) is None
    True
    """
    found = {_ordinal(number): float(value) for number, value in _LIKELIHOOD.findall(text)}
    if sorted(found) != list(range(1, n + 1)) or not all(0 <= one <= 1 for one in found.values()):
        return None
    return [found[number] for number in sorted(found)]


def read_choice(text: str, n: int) -> int | None:
    """The index of what was chosen of n; None where nothing was."""
    found = _CHOICE.findall(text)
    chosen = _ordinal(found[-1]) if found else 0
    return chosen - 1 if 1 <= chosen <= n else None


def _ordinal(digits: str) -> int:
    """A number in a list; 0, which no list has, for one that Python might refuse to read for its length."""
    return int(digits) if len(digits) < 10 else 0


_DECISION = re.compile(r"^[ \t]*Decision:[ \t]*(KEEP|REFINE)\b", re.MULTILINE | re.IGNORECASE)
_THOUGHT = re.compile(r"^[ \t]*Thought:\s*\S", re.MULTILINE | re.IGNORECASE)
_ACTION = re.compile(r"^[ \t]*Action:", re.MULTILINE | re.IGNORECASE)
# Written so that no digit can belong to two parts: a long run of digits is then read once.
_LIKELIHOOD = re.compile(r"^[ \t]*(\d+)[:.][ \t]*((?:\d*\.)?\d+)[ \t]*$", re.MULTILINE)
_CHOICE = re.compile(r"^[ \t]*Choice:[ \t]*(\d+)\b", re.MULTILINE | re.IGNORECASE)

OUTCOMES = """\
A critic that has learned from many earlier runs has judged where this thought leads. Outcomes, and how likely each is
reached:\
"""
OWN_OUTCOMES = "You have judged where this thought leads. Outcomes, and how likely each is reached:"
SUCCESS = """\
A critic that has learned from many earlier runs gives the task, after this thought, a likelihood of success of
{likelihood:.2f}.\
"""
