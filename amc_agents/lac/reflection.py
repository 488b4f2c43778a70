"""Reflections: one line on what a step was good for, which ends in a verdict (LAC, section 4.1 and appendix B.2).

A reflection (`... This step is GOOD`, `BAD` or `UNKNOWN`) is the last line of a step's observation, for past steps and
for imagined steps. Every reader of a trajectory therefore sees it, and prompts stay append-only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from amc_agents.decisions.asking import Answers, ask_all
from amc_agents.decisions.transcript import PAST, fenced, transcript
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
