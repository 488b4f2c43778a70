"""Imagined rollouts by a language model (LAC, eq. 3 and appendix B.2).

A forward model predicts what follows an action: the observation, a reflection that ends in a verdict, and the agent's
next turn. A rollout stops at the verdict GOOD or BAD. Its last verdict is cut off, since the critic predicts that word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from amc_agents.decisions.asking import Answers, ask_all
from amc_agents.decisions.transcript import PAST, fenced, transcript
from amc_agents.errors import ConfigurationError
from amc_agents.lac.reflection import BAD, GOOD, UNKNOWN, before_verdict, verdict_of, with_reflection
from amc_agents.lac.types import MAX_DEPTH
from amc_agents.types import Step, Trajectory


class Imagined(NamedTuple):
    """The parsed answer of a forward model."""

    observation: str
    reflection: str = ""
    """One line, verdict included."""
    verdict: str = UNKNOWN
    """GOOD, BAD or UNKNOWN."""
    thought: str = ""
    action: str = ""
    """The agent's next action; empty: the agent stops."""


def read_imagined(text: str) -> Imagined | None:
    r"""Parse an answer; None if it has no observation.

    >>> imagined = read_imagined("Observation: Got 2 clay\nReflection: One part of two. This step is GOOD.")
    >>> imagined.observation, imagined.verdict, imagined.action
    ('Got 2 clay', 'GOOD', '')
    """
    parts: dict[str, str] = {}
    labels = list(_LABEL.finditer(text))
    ends = [*(label.start() for label in labels[1:]), len(text)]
    for label, end in zip(labels, ends, strict=False):
        # Only the first step counts if the model wrote several.
        parts.setdefault(label[1].capitalize(), text[label.end() : end].strip())
    if not parts.get("Observation"):
        return None
    reflection = " ".join(parts.get("Reflection", "").split())
    return Imagined(
        parts["Observation"], reflection, verdict_of(reflection), parts.get("Thought", ""), parts.get("Action", "")
    )


class ChatImagination:
    """Imagines the consequences of candidate actions with a chat model (`amc_agents.lac.types.Imagination`).

    All candidates advance together: one batch of requests per imagined step.

    Args:
        answers: calls a chat model.
        depth: maximum number of steps, the candidate included.
        reflect: each imagined step gets a reflection, and a verdict stops the rollout. If False, rollouts continue to
            `depth`.

    Raises:
        ConfigurationError: the depth is not 1 to 4.
    """

    def __init__(self, answers: Answers, *, depth: int = MAX_DEPTH, reflect: bool = True) -> None:
        if not 1 <= depth <= MAX_DEPTH:
            raise ConfigurationError(f"a rollout imagines 1 to {MAX_DEPTH} steps, got depth={depth}")
        self._answers, self._depth, self._reflect = answers, depth, reflect

    async def imagine(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """Return `[A]` the trajectories with imagined observations and steps; the last reflection has no verdict.

        A rollout ends early if its answer cannot be parsed.

        Raises:
            CriticError: the model failed.
        """
        rollouts = [_Rollout(trajectory) for trajectory in trajectories]
        for _ in range(self._depth):
            active = [rollout for rollout in rollouts if rollout.next is not None]
            prompts = [self._prompt(rollout.open_trajectory()) for rollout in active]
            for rollout, text in zip(active, await ask_all(self._answers, prompts, "forward model"), strict=True):
                rollout.advance(read_imagined(text), self._reflect)
        return [rollout.result() for rollout in rollouts]

    def _prompt(self, trajectory: Trajectory) -> str:
        return fenced(IMAGINE_AND_REFLECT if self._reflect else IMAGINE).format(past=transcript(trajectory))


class _Rollout:
    """The imagined future of a candidate: steps with their observations, and the action that comes next."""

    def __init__(self, candidate: Trajectory) -> None:
        self._candidate, self._past = candidate, replace(candidate, steps=candidate.steps[:-1])
        self._made: list[tuple[Step, str]] = []
        self.next: Step | None = candidate.steps[-1]

    def open_trajectory(self) -> Trajectory:
        """Return the trajectory up to the action whose observation is imagined next."""
        steps = [_observed(step, reflection) for step, reflection in self._made]
        steps += [] if self.next is None else [self.next]
        return replace(self._past, steps=(*self._past.steps, *steps))

    def advance(self, imagined: Imagined | None, reflect: bool) -> None:
        """Append an imagined step; None ends the rollout."""
        if imagined is None or self.next is None:
            self.next = None
            return
        step = replace(self.next, observation=imagined.observation)
        self._made.append((step, imagined.reflection if reflect else ""))
        over = (reflect and imagined.verdict in (GOOD, BAD)) or not imagined.action
        self.next = None if over else Step(imagined.action, thought=imagined.thought)

    def result(self) -> Trajectory:
        """Return the rollout so far, cut before its last verdict."""
        if not self._made:
            return self._candidate
        *earlier, (last, reflection) = self._made
        steps = [_observed(*made) for made in earlier] + [_observed(last, before_verdict(reflection))]
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
