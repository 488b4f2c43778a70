"""Write the critique in words, and parse the agent's answer to it (PNLC, section 4.2).

The critique states how likely good and bad outcomes are; the agent keeps its thought or writes a better thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from amc_agents.critics.judge.style import plain_lines
from amc_agents.pnlc.types import Goal


def critique_of_goals(goals: Sequence[Goal], *, by_critic: bool = True) -> str:
    """Write goals with their likelihoods for the agent.

    Args:
        goals: good goals first.
        by_critic: False if the model itself estimated the likelihoods.
    """
    title = OUTCOMES if by_critic else OWN_OUTCOMES
    lines = [f"- {'good' if goal.positive else 'bad'}, likelihood {goal.likelihood:.2f}: {goal.text}" for goal in goals]
    return "\n".join((title, *lines))


def critique_of_value(likelihood: float) -> str:
    """Write the likelihood of success for the agent."""
    return SUCCESS.format(likelihood=likelihood)


def score_of(goals: Sequence[Goal]) -> float:
    """Return the mean likelihood of the good goals minus that of the bad goals, in [-1, 1]; no goals of a kind count 0.

    >>> score_of([Goal("won", True, 0.75), Goal("stuck", False, 0.5), Goal("lost", False, 0.0)])
    0.5
    """
    good = [goal.likelihood for goal in goals if goal.positive]
    bad = [goal.likelihood for goal in goals if not goal.positive]
    return float((np.mean(good) if good else 0.0) - (np.mean(bad) if bad else 0.0))


def read_reply(text: str) -> str | None:
    r"""Parse the better thought; empty: the agent keeps its thought, None: the answer cannot be parsed.

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
    # An action in the answer is ignored: the agent acts after its final thought.
    action = _ACTION.search(text, thought.end())
    return text[thought.end() - 1 : action.start() if action else None].rstrip()


def read_likelihoods(text: str, n: int) -> list[float] | None:
    r"""Parse `[n]` numbers from 0 to 1, in the order of the goals; None if any is missing.

    >>> read_likelihoods("1: 0.9\n2: .25", 2)
    [0.9, 0.25]
    >>> read_likelihoods("**1:** 0.9\n2) 25%", 2)
    [0.9, 0.25]
    >>> read_likelihoods("1: likely", 1) is None
    True
    """
    lines = filter(None, map(_LIKELIHOOD.fullmatch, plain_lines(text)))
    likelihoods = {_ordinal(line[1]): float(line[2]) / (100 if line[3] else 1) for line in lines}
    if sorted(likelihoods) != list(range(1, n + 1)) or not all(0 <= p <= 1 for p in likelihoods.values()):
        return None
    return [likelihoods[number] for number in sorted(likelihoods)]


def read_choice(text: str, n: int) -> int | None:
    """Parse the index of the choice among n; None if there is no valid choice."""
    choices = _CHOICE.findall(text)
    chosen = _ordinal(choices[-1]) if choices else 0
    return chosen - 1 if 1 <= chosen <= n else None


def _ordinal(digits: str) -> int:
    """Convert the number of a list item; 0, which is no item, for a number too long for Python to convert."""
    return int(digits) if len(digits) < 10 else 0


_DECISION = re.compile(r"^[ \t]*Decision:[ \t]*(KEEP|REFINE)\b", re.MULTILINE | re.IGNORECASE)
_THOUGHT = re.compile(r"^[ \t]*Thought:\s*\S", re.MULTILINE | re.IGNORECASE)
_ACTION = re.compile(r"^[ \t]*Action:", re.MULTILINE | re.IGNORECASE)
# No digit can match two parts, so a long run of digits takes linear time.
_LIKELIHOOD = re.compile(r"(?:[-•] )?([0-9]+)[:.)] ?((?:[0-9]*\.)?[0-9]+)(?:/1(?:\.0)?| ?(%))?")
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
