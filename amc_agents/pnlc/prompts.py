"""PNLC's texts: prompts, the critique in words, and the parsing of answers (PNLC, section 4.2).

The critique states how likely good and bad outcomes are; the agent keeps its thought or writes a better thought.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from string import Formatter

import numpy as np

from amc_agents.critics.judge.style import plain_lines
from amc_agents.decisions import Answers, fenced, strictly, transcript
from amc_agents.errors import ConfigurationError
from amc_agents.pnlc.types import Goal, Proposed
from amc_agents.quoting import quoted
from amc_agents.types import Trajectory


@dataclass(frozen=True)
class PnlcPrompts:
    """The texts of a decision: parts that depend on the task, and the templates around them.

    Raises:
        ConfigurationError: a template lacks a required field or has an unknown field.
    """

    task: str = ""
    """Task description for the models, in addition to what the agent has read: rules, goal, tools."""
    goal_style: str = (
        "Write each as the world would report it, in the words and the style of the observations above, in one short "
        "sentence."
    )
    """Instruction for the phrasing of goals, ideally like the states in the critic's training data."""
    positive_goals: tuple[str, ...] = ()
    """Examples of good outcomes."""
    negative_goals: tuple[str, ...] = ()
    """Examples of bad outcomes."""
    refinements: tuple[tuple[str, str], ...] = ()
    """Examples of refinement: pairs of a thought and the better thought after a critique."""
    propose: str = field(default_factory=lambda: PROPOSE)
    """Template with {task}, {past}, {thought}, {kind}, {n}, {style} and {examples}."""
    refine: str = field(default_factory=lambda: REFINE)
    """Template with {task}, {past}, {thought}, {critique} and {examples}."""
    act: str = field(default_factory=lambda: ACT)
    """Template with {thought}."""
    likelihoods: str = field(default_factory=lambda: LIKELIHOODS)
    """Template with {task}, {past}, {thought} and {goals}."""
    select: str = field(default_factory=lambda: SELECT)
    """Template with {task}, {past} and {turns}."""

    def __post_init__(self) -> None:
        """Check the fields of the templates."""
        for name, (needed, others) in FIELDS.items():
            used = {
                field_name for _, field_name, _, _ in Formatter().parse(getattr(self, name)) if field_name is not None
            }
            if not needed <= used <= needed | others:
                raise ConfigurationError(
                    f"the prompt {quoted(name)} has the fields {sorted(used)}: it needs {sorted(needed)} and may have "
                    f"{sorted(others)}. Double a brace that is part of the text"
                )

    def to_propose(self, trajectory: Trajectory, thought: str, n: int, *, positive: bool) -> str:
        """Write the prompt for n good or n bad goals."""
        examples = self.positive_goals if positive else self.negative_goals
        return fenced(self.propose).format(
            task=_paragraph(self.task),
            past=transcript(trajectory),
            thought=f"The agent is about to act on this thought:\n{thought}\n\n" if thought else "",
            kind=POSITIVE if positive else NEGATIVE,
            n=n,
            style=self.goal_style,
            examples=_listed("For example:", [f"Goal: {goal}" for goal in examples]),
        )

    def to_refine(self, trajectory: Trajectory, thought: str, critique: str) -> str:
        """Write the prompt that shows the critique of a thought."""
        examples = [f"Thought: {old}\nBetter thought: {new}" for old, new in self.refinements]
        return fenced(self.refine).format(
            task=_paragraph(self.task),
            past=transcript(trajectory),
            thought=thought,
            critique=critique,
            examples=_listed("For example:", examples),
        )

    def to_act(self, thought: str) -> str:
        """Write the prompt for the turn that follows from a thought."""
        return self.act.format(thought=thought)

    def to_estimate(self, trajectory: Trajectory, thought: str, goals: Sequence[str]) -> str:
        """Write the prompt for likelihoods of goals."""
        numbered = "\n".join(f"{number}. {goal}" for number, goal in enumerate(goals, start=1))
        return fenced(self.likelihoods).format(
            task=_paragraph(self.task), past=transcript(trajectory), thought=thought, goals=numbered
        )

    def to_select(self, trajectory: Trajectory, turns: Sequence[str]) -> str:
        """Write the prompt for the choice among turns."""
        numbered = "\n\n".join(f"{number}.\n{turn}" for number, turn in enumerate(turns, start=1))
        return fenced(self.select).format(task=_paragraph(self.task), past=transcript(trajectory), turns=numbered)


def _paragraph(text: str) -> str:
    return f"{text}\n\n" if text else ""


def _listed(title: str, examples: Sequence[str]) -> str:
    return "\n".join((title, *examples)) + "\n\n" if examples else ""


POSITIVE = "good: they bring the task forward, or fulfil it"
NEGATIVE = "bad: what may go wrong, and would hold the task up or make it fail"

_PAST = """\
{task}An agent works on a task, step by step. This is what happened up to now:

---
{past}
---

"""

PROPOSE: str = (
    _PAST
    + """\
{thought}\
Imagine how this may go on in the next steps. Of the situations that may then come about, name {n}, no two alike. They
are to be {kind}.
{style}

{examples}\
Answer with one line of this form for each and add nothing:

Goal: <the situation>\
"""
)

_OWN_PAST = """\
{task}You work on a task, step by step. This is what happened up to now:

---
{past}
---

"""

REFINE: str = (
    _OWN_PAST
    + """\
You are about to act on this thought; nothing has been done yet:
{thought}

{critique}

{examples}\
First say in one or two sentences whether the thought will lead to success, and if not, what will probably go wrong.
Then keep the thought if it will; else write a better one that avoids that failure. Answer in this form and add nothing:

Diagnosis: <your sentences>
Decision: <KEEP or REFINE>
Thought: <the better thought; leave this line out if the decision is KEEP>\
"""
)

ACT: str = """\
You have thought the next step over and decided on this:
{thought}

Take that step now, in your usual form, as if you had come to it yourself. Do not mention this message.\
"""

LIKELIHOODS: str = (
    _OWN_PAST
    + """\
You are about to act on this thought; nothing has been done yet:
{thought}

How likely is each of these situations reached, sooner or later, if you go on like this?

{goals}

Answer with one line for each situation, its number and its probability from 0 to 1, and add nothing:

1: <probability>\
"""
)

SELECT: str = (
    _OWN_PAST
    + """\
You have thought of these ways to go on; nothing has been done yet:

{turns}

Which one is most likely to lead to success? Answer with one line of this form and add nothing:

Choice: <its number>\
"""
)

FIELDS = {
    "propose": ({"past", "thought", "kind", "n"}, {"task", "style", "examples"}),
    "refine": ({"past", "thought", "critique"}, {"task", "examples"}),
    "act": ({"thought"}, set()),
    "likelihoods": ({"past", "thought", "goals"}, {"task"}),
    "select": ({"past", "turns"}, {"task"}),
}
"""Template -> required fields, optional fields."""


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


def read_goals(text: str, n: int) -> list[str] | None:
    r"""Parse the goals of an answer; None unless it has exactly n different goals.

    >>> read_goals("Goal: The door is open.\nGoal 2: The key is found.", 2)
    ['The door is open.', 'The key is found.']
    >>> read_goals("1. The door is open.", 1) is None
    True
    """
    goals = [" ".join(goal.split()) for goal in _GOAL.findall(text)]
    return goals if len(goals) == n == len(set(goals)) else None


class ChatGoalProposer:
    """Proposes goals with a chat model: a request for all good goals and a request for all bad goals, concurrently.

    All goals of a kind share a request, so that they differ.

    Args:
        answers: calls a chat model.
        prompts: the prompt templates.
    """

    def __init__(self, answers: Answers, prompts: PnlcPrompts | None = None) -> None:
        self._answers, self._prompts = answers, prompts or PnlcPrompts()

    async def propose(self, trajectory: Trajectory, thought: str, n_positive: int, n_negative: int) -> Proposed:
        """Return the given numbers of goals for the newest state; an empty thought stands for any thought.

        Raises:
            DecisionError: an answer could not be parsed twice in a row; the message quotes it.
            CriticError: the model failed.
        """
        wanted = [(n, positive) for n, positive in ((n_positive, True), (n_negative, False)) if n]
        prompts = [self._prompts.to_propose(trajectory, thought, n, positive=positive) for n, positive in wanted]
        read = [partial(read_goals, n=n) for n, _ in wanted]
        answers, trips = await strictly(self._answers, prompts, read, "goal proposer")
        by_kind = {positive: tuple(goals) for (_, positive), goals in zip(wanted, answers, strict=True)}
        return Proposed(by_kind.get(True, ()), by_kind.get(False, ()), trips)


_GOAL = re.compile(r"^[ \t]*Goal(?:[ \t]+\d+)?:[ \t]*(\S.*)$", re.MULTILINE | re.IGNORECASE)
