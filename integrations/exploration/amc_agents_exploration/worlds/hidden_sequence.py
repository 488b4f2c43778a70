"""Base of the combination lock and Wordle: a hidden sequence of different symbols, guessed symbol by symbol."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from amc_agents.types import TimeStep, Trajectory
from amc_agents_exploration.worlds.world import Instance

Feedback = Literal["right", "elsewhere", "absent"]
FEEDBACKS: tuple[Feedback, ...] = ("right", "elsewhere", "absent")
_PHRASES: dict[Feedback, str] = {
    "right": "is in the right place",
    "elsewhere": "occurs, but in another place",
    "absent": "does not occur",
}
_FEEDBACK_OF = {phrase: feedback for feedback, phrase in _PHRASES.items()}
_OBSERVATION = re.compile(rf"Place (\d+): (\w) ({'|'.join(_PHRASES.values())})\..*")


class Entered(NamedTuple):
    """An entered symbol with its feedback."""

    place: int
    """Index of the place, from 0."""
    symbol: str
    feedback: Feedback


class _State(NamedTuple):
    place: int
    all_right: bool


@dataclass(frozen=True, kw_only=True)
class HiddenSequence(Instance):
    """Pays 1 for an episode in which every symbol is right. Each symbol gets feedback at once."""

    symbols: ClassVar[str]
    """Symbols that can be entered."""
    solved: ClassVar[str]
    """Last words of an episode in which every symbol was right."""
    unsolved: ClassVar[str]
    """Last words of any other episode."""

    answer: str
    """The hidden sequence, without repeated symbols."""

    @property
    def optimal_value(self) -> float:
        """1, the return of entering the answer."""
        return 1.0

    @property
    def actions(self) -> tuple[str, ...]:
        """The symbols that can be entered."""
        return tuple(self.symbols)

    def start(self) -> _State:
        """Return the state before the first symbol."""
        return _State(0, True)

    def advance(self, state: _State, action: str, rng: np.random.Generator) -> tuple[_State, TimeStep]:
        """Enter a symbol at the next place. The last place ends the episode."""
        symbol = action.lower()
        if len(symbol) == 1 and symbol in self.symbols:
            text = f"Place {state.place + 1}: {symbol} {_PHRASES[feedback_on(symbol, state.place, self.answer)]}."
        else:
            text = f"Place {state.place + 1}: that cannot be entered, and the place is lost."
        after = _State(state.place + 1, state.all_right and symbol == self.answer[state.place])
        if after.place < len(self.answer):
            return after, TimeStep.transition(text)
        ending = self.solved if after.all_right else self.unsolved
        return after, TimeStep.termination(f"{text} {ending}", float(after.all_right))

    def regret(self, trajectory: Trajectory) -> float:
        """Return 1 if any symbol is wrong, else 0."""
        entered = (step.action.strip().lower() for step in trajectory.steps)
        return float(any(symbol != right for symbol, right in zip(entered, self.answer, strict=False)))


def feedback_on(symbol: str, place: int, answer: str) -> Feedback:
    """Return the feedback on a symbol entered at a place (from 0), given the hidden sequence `answer`."""
    if answer[place] == symbol:
        return "right"
    return "elsewhere" if symbol in answer else "absent"


def read_entered(observation: str) -> Entered | None:
    """Parse the symbol, its place and its feedback; None if the entry was invalid."""
    match = _OBSERVATION.fullmatch(observation)
    return Entered(int(match[1]) - 1, match[2], _FEEDBACK_OF[match[3]]) if match else None
