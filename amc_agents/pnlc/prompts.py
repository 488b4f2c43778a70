"""PNLC's prompts: task description, style of goals, examples and templates, all replaceable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import Formatter

from amc_agents.decisions.transcript import fenced, transcript
from amc_agents.errors import ConfigurationError
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
