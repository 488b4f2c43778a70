"""Reflections, and imagined rollouts by a language model (LAC, section 4.1, eq. 3 and appendix B.2).

A reflection is one line on what a step was good for, which ends in a verdict (`... This step is GOOD`, `BAD` or
`UNKNOWN`). It is the last line of a step's observation, for past steps and for imagined steps. Every reader of a
trajectory therefore sees it, and prompts stay append-only.

A forward model predicts what follows an action: the observation, a reflection, and the agent's next turn. A rollout
stops at the verdict GOOD or BAD. Its last verdict is cut off, since the critic predicts that word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from amc_agents.decisions import PAST, Answers, ask_all, fenced, transcript
from amc_agents.errors import ConfigurationError
from amc_agents.lac.types import MAX_DEPTH
from amc_agents.types import Step, Trajectory

GOOD, BAD, UNKNOWN = "GOOD", "BAD", "UNKNOWN"
"""Verdicts on a step."""


def verdict_of(reflection: str) -> str:
    """Return the last verdict that a reflection states, or UNKNOWN if it states none."""
    verdicts = _VERDICT.findall(reflection)
    return verdicts[-1].upper() if verdicts else UNKNOWN


def before_verdict(reflection: str) -> str:
    """Cut a reflection before the sentence with its verdict, which the critic is to predict.

    >>> before_verdict("I hold one part of two. This step is GOOD.")
    'I hold one part of two.'
    """
    verdicts = list(_VERDICT.finditer(reflection))
    return reflection[: verdicts[-1].start()].strip() if verdicts else reflection


def reflection_of(step: Step) -> str:
    """Return the reflection on a step; empty if it has none."""
    last = step.observation.rpartition("\n")[2]
    return last.removeprefix(_MARK).strip() if last.startswith(_MARK) else ""


def with_reflection(observation: str, reflection: str) -> str:
    """Append a reflection to an observation as its last line; an empty reflection changes nothing."""
    line = f"{_MARK} {reflection}" if reflection else ""
    return "\n".join(part for part in (observation, line) if part)


def reflected(trajectory: Trajectory, reflection: str) -> Trajectory:
    """Append a reflection to the newest step of a trajectory."""
    *past, newest = trajectory.steps
    newest = replace(newest, observation=with_reflection(newest.observation, reflection))
    return replace(trajectory, steps=(*past, newest))


class ChatReflector:
    """Reflects on the newest step before the next decision, in one round trip.

    Args:
        answers: calls a chat model.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    async def reflections(self, trajectories: Sequence[Trajectory]) -> list[str]:
        """Return `[N]` one line on the newest step of each trajectory.

        The line is empty if the trajectory has no step, or if its newest step has a reflection already.

        Raises:
            CriticError: the model failed.
        """
        rows = [i for i, path in enumerate(trajectories) if path.steps and not reflection_of(path.steps[-1])]
        prompts = [fenced(REFLECT).format(past=transcript(trajectories[row])) for row in rows]
        lines = [""] * len(trajectories)
        for row, text in zip(rows, await ask_all(self._answers, prompts, "reflection"), strict=True):
            lines[row] = " ".join(text.strip().removeprefix(_MARK).split())
        return lines

    async def reflect(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with a reflection on its newest step. Raises as `reflections`."""
        (reflection,) = await self.reflections([trajectory])
        return reflected(trajectory, reflection) if reflection else trajectory


_MARK = "Reflection:"
_VERDICT = re.compile(r"\bThis step is:?\s+(GOOD|BAD|UNKNOWN)\b", re.IGNORECASE)

REFLECT = (
    PAST
    + """\
Look at the newest action and at what came of it. Say in one short sentence whether it helped and why, then judge it:
GOOD if it was needed for the goal or brought what had to be known, BAD if it was useless or wrong, UNKNOWN if that
cannot be told yet. Answer with one line of this form:

Reflection: <your sentence> This step is <GOOD, BAD or UNKNOWN>.\
"""
)


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
