"""The word regression of `word_value.py` on words relative to the goal, for worlds whose goal names what is needed.

    python reproduce/worlds/goal_value.py DATA OUT.json            # of `amc collect`; a fifth of the tasks is held out
    amc bench --world alfworld --critic 'goal_value:GoalValue?path=OUT.json' ...

A word of the goal becomes "goal", and a verb whose action concerns a word of the goal is a word of its own: holding the
object of the goal is then the same feature in every task.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from word_value import HELD_OUT, WordValue, fit, states

from amc_agents.files import replace_file
from amc_agents.training.dataset import read_trajectories
from amc_agents.training.ranking import ranking
from amc_agents.types import FloatArray, Step, Trajectory

_WORD = re.compile(r"[a-z]+")
_COMMON = {"your", "task", "is", "to", "a", "the", "some", "two", "it", "and", "in", "on", "with", "put", "find"}


def relative(trajectory: Trajectory) -> Trajectory:
    """Return the trajectory with its words relative to the goal."""
    goal = set(_WORD.findall(goal_of(trajectory.task.instruction).lower())) - _COMMON
    return replace(trajectory, steps=tuple(_relative(step, goal) for step in trajectory.steps))


def goal_of(instruction: str) -> str:
    """Return the line that begins with "Goal:", and otherwise the last line."""
    lines = instruction.split("\n")
    return next((line for line in lines if line.startswith("Goal:")), lines[-1])


def _relative(step: Step, goal: set[str]) -> Step:
    verb, *rest = _WORD.findall(step.action.lower()) or [""]
    about = next((f"about{place}" for place, word in enumerate(rest) if word in goal), "")
    seen = ["goal" if word in goal else word for word in _WORD.findall(step.observation.lower())]
    return replace(step, action=f"{verb}{about}", observation=" ".join(seen))


class GoalValue:
    """The critic of a file that `main` wrote.

    Args:
        path: the file.
    """

    def __init__(self, path: str) -> None:
        self._words = WordValue(path)

    async def values(self, trajectories: Sequence[Trajectory]) -> FloatArray:
        """`[N]` predicted future returns."""
        return await self._words.values([relative(trajectory) for trajectory in trajectories])


def main(data: str, out: str) -> None:
    """Fit on four fifths of the tasks, and store the weights with how they rank siblings of the others."""
    played = [relative(trajectory) for trajectory in read_trajectories(data)]
    kept = [zlib.crc32(trajectory.task.id.encode()) % HELD_OUT > 0 for trajectory in played]
    weights = fit([trajectory for trajectory, keep in zip(played, kept, strict=True) if keep])
    held_out = [trajectory for trajectory, keep in zip(played, kept, strict=True) if not keep]
    scored = [(each, np.array([weights.value(state) for state in states(each)])) for each in held_out]
    report = ranking(scored, predicts="future")
    print("\n".join(report.sentences))
    told = {"trajectories": len(played), "held_out": len(held_out), "ranking": report.as_plain()}
    text = json.dumps(told | {"weights": {"intercept": weights.intercept, "of": weights.of}}, indent=0)
    replace_file(Path(out), text)


if __name__ == "__main__":
    main(*sys.argv[1:])
