"""What the combination lock and Wordle share: a hidden sequence of different symbols, guessed one symbol at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from amc_agents.envs.exploration.world import Instance
from amc_agents.types import TimeStep, Trajectory

Feedback = Literal["right", "elsewhere", "absent"]
FEEDBACKS: tuple[Feedback, ...] = ("right", "elsewhere", "absent")
_TOLD: dict[Feedback, str] = {
    "right": "is in the right place",
    "elsewhere": "occurs, but in another place",
    "absent": "does not occur",
}
_FEEDBACK_OF = {told: feedback for feedback, told in _TOLD.items()}
_OBSERVATION = re.compile(rf"Place (\d+): (\w) ({'|'.join(_TOLD.values())})\..*")


class Entered(NamedTuple):
    """One symbol that was entered, and what the world said of it."""

    place: int
    """Where, from 0."""
    symbol: str
    feedback: Feedback


class _Progress(NamedTuple):
    place: int
    all_right: bool


@dataclass(frozen=True, kw_only=True)
class HiddenSequence(Instance):
    """Pays 1 for an episode in which every symbol was right. Each symbol gets feedback at once."""

    symbols: ClassVar[str]
    """What can be entered."""
    solved: ClassVar[str]
    """Told at the end of an episode in which all was right."""
    unsolved: ClassVar[str]
    """Told at the end of any other."""

    answer: str
    """The hidden sequence; no symbol twice."""

    @property
    def optimal_value(self) -> float:
        """One who knows the answer enters it."""
        return 1.0

    @property
    def actions(self) -> tuple[str, ...]:
        """The symbols."""
        return tuple(self.symbols)

    def start(self) -> _Progress:
        """Nothing has been entered."""
        return _Progress(0, True)

    def advance(self, state: _Progress, action: str, rng: np.random.Generator) -> tuple[_Progress, TimeStep]:
        """Enter a symbol at the next place; the last one ends the episode."""
        symbol = action.lower()
        if len(symbol) == 1 and symbol in self.symbols:
            told = f"Place {state.place + 1}: {symbol} {_TOLD[feedback_on(symbol, state.place, self.answer)]}."
        else:
            told = f"Place {state.place + 1}: that cannot be entered, and the place is lost."
        after = _Progress(state.place + 1, state.all_right and symbol == self.answer[state.place])
        if after.place < len(self.answer):
            return after, TimeStep.transition(told)
        ending = self.solved if after.all_right else self.unsolved
        return after, TimeStep.termination(f"{told} {ending}", float(after.all_right))

    def regret(self, trajectory: Trajectory) -> float:
        """1 from the first wrong symbol on, 0 before."""
        entered = (step.action.strip().lower() for step in trajectory.steps)
        return float(any(one != right for one, right in zip(entered, self.answer, strict=False)))


def feedback_on(symbol: str, place: int, answer: str) -> Feedback:
    """What is said of a symbol entered at a place (from 0), where `answer` is the hidden sequence."""
    if answer[place] == symbol:
        return "right"
    return "elsewhere" if symbol in answer else "absent"


def read_entered(observation: str) -> Entered | None:
    """The symbol, its place and the feedback; None where nothing could be entered."""
    match = _OBSERVATION.fullmatch(observation)
    return Entered(int(match[1]) - 1, match[2], _FEEDBACK_OF[match[3]]) if match else None
