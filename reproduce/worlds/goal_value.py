"""The word regression of `word_value.py` on words relative to the goal, for worlds whose goal names what is needed.

    python reproduce/worlds/goal_value.py DATA OUT.json            # of `amc collect`; a fifth of the tasks is held out
    amc bench --world alfworld --critic 'goal_value:GoalValue?path=OUT.json' ...

A word of the goal becomes "goal", and a verb whose action concerns a word of the goal is a word of its own: holding the
object of the goal is then the same feature in every task.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace

from amc_agents.training.dataset import read_trajectories
from amc_agents.types import FloatArray, Step, Trajectory
from reproduce.worlds.word_value import WordValue, train

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


if __name__ == "__main__":
    train([relative(trajectory) for trajectory in read_trajectories(sys.argv[1])], sys.argv[2])
