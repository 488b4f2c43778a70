"""Imagined rollouts by a language model (LAC, eq. 3 and appendix B.2).

A forward model says what may come after an action: the observation, a reflection that ends in a verdict, and how the
agent goes on. A rollout stops at the verdict GOOD or BAD, and is cut before its last one: that word is the critic's to
say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from amc_agents.decisions.reflection import (
    BAD,
    GOOD,
    PAST,
    UNKNOWN,
    Answers,
    asked,
    before_verdict,
    fenced,
    told,
    verdict_of,
    with_reflection,
)
from amc_agents.errors import ConfigurationError
from amc_agents.lac.types import MAX_DEPTH
from amc_agents.types import Step, Trajectory


class Imagined(NamedTuple):
    """One answer of a forward model, read."""

    observation: str
    reflection: str = ""
    """One line, its verdict included."""
    verdict: str = UNKNOWN
    """GOOD, BAD or UNKNOWN."""
    thought: str = ""
    action: str = ""
    """How the agent goes on; empty: it does not."""


def read_imagined(text: str) -> Imagined | None:
    r"""The parts of an answer; None where it gives no observation.

    >>> found = read_imagined("Observation: Got 2 clay\nReflection: One part of two. This step is GOOD.")
    >>> found.observation, found.verdict, found.action
    ('Got 2 clay', 'GOOD', '')
    """
    parts: dict[str, str] = {}
    found = list(_LABEL.finditer(text))
    ends = [*(label.start() for label in found[1:]), len(text)]
    for label, end in zip(found, ends, strict=False):
        # Whatever it goes on to write, only the first step is taken.
        parts.setdefault(label[1].capitalize(), text[label.end() : end].strip())
    if not parts.get("Observation"):
        return None
    reflection = " ".join(parts.get("Reflection", "").split())
    return Imagined(
        parts["Observation"], reflection, verdict_of(reflection), parts.get("Thought", ""), parts.get("Action", "")
    )


class ChatImagination:
    """Imagines what comes after candidate actions, by a chat model: `amc_agents.lac.types.Imagination`.

    All candidates advance together: one batch of requests for each step that is imagined.

    Args:
        answers: asks a chat model.
        depth: the most steps, the candidate's own included.
        reflect: each imagined step gets a reflection, and a verdict stops the rollout. Without, it goes on to `depth`.

    Raises:
        ConfigurationError: the depth is not 1 to 4.
    """

    def __init__(self, answers: Answers, *, depth: int = MAX_DEPTH, reflect: bool = True) -> None:
        if not 1 <= depth <= MAX_DEPTH:
            raise ConfigurationError(f"a rollout imagines 1 to {MAX_DEPTH} steps, got depth={depth}")
        self._answers, self._depth, self._reflect = answers, depth, reflect

    async def imagine(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """`[A]` the trajectories with imagined observations, and further steps; the last reflection has no verdict.

        One whose answer cannot be read stays as far as it is.

        Raises:
            CriticError: the model failed.
        """
        rollouts = [_Rollout(one) for one in trajectories]
        for _ in range(self._depth):
            going = [one for one in rollouts if one.next is not None]
            prompts = [self._prompt(one.asked()) for one in going]
            for one, text in zip(going, await asked(self._answers, prompts, "forward model"), strict=True):
                one.advance(read_imagined(text), self._reflect)
        return [one.result() for one in rollouts]

    def _prompt(self, trajectory: Trajectory) -> str:
        return fenced(IMAGINE_AND_REFLECT if self._reflect else IMAGINE).format(past=told(trajectory))


class _Rollout:
    """One candidate's future: the steps with their observations, and the action that comes next."""

    def __init__(self, candidate: Trajectory) -> None:
        self._candidate, self._past = candidate, replace(candidate, steps=candidate.steps[:-1])
        self._made: list[tuple[Step, str]] = []
        self.next: Step | None = candidate.steps[-1]

    def asked(self) -> Trajectory:
        """The trajectory up to the action whose observation is to be imagined."""
        steps = [_observed(step, reflection) for step, reflection in self._made]
        steps += [] if self.next is None else [self.next]
        return replace(self._past, steps=(*self._past.steps, *steps))

    def advance(self, found: Imagined | None, reflect: bool) -> None:
        """Take in one answer."""
        if found is None or self.next is None:
            self.next = None
            return
        self._made.append((replace(self.next, observation=found.observation), found.reflection if reflect else ""))
        over = (reflect and found.verdict in (GOOD, BAD)) or not found.action
        self.next = None if over else Step(found.action, thought=found.thought)

    def result(self) -> Trajectory:
        """The rollout so far, cut before its last verdict."""
        if not self._made:
            return self._candidate
        *earlier, (last, reflection) = self._made
        steps = [_observed(*one) for one in earlier] + [_observed(last, before_verdict(reflection))]
        return replace(self._past, steps=(*self._past.steps, *steps))


def _observed(step: Step, reflection: str) -> Step:
    return replace(step, observation=with_reflection(step.observation, reflection))


_LABEL = re.compile(r"^[ \t]*(Observation|Reflection|Thought|Action):", re.MULTILINE | re.IGNORECASE)

IMAGINE_AND_REFLECT = (
    PAST
    + """\
The newest action has not been carried out. Imagine what the world would answer, in the style of the observations above.
Then say in one short sentence whether the action helps and why, and judge it: GOOD if it is needed for the goal or
brings what has to be known, BAD if it is useless or wrong, UNKNOWN if that cannot be told yet. Then write how the agent
would go on. Answer in this form and add nothing:

Observation: <what the world answers>
Reflection: <your sentence> This step is <GOOD, BAD or UNKNOWN>.
Action: <the agent's next action; leave this line out if the task is over>\
"""
)

IMAGINE = (
    PAST
    + """\
The newest action has not been carried out. Imagine what the world would answer, in the style of the observations above,
and how the agent would go on. Answer in this form and add nothing:

Observation: <what the world answers>
Action: <the agent's next action; leave this line out if the task is over>\
"""
)
