"""An expert of generated TextWorld games that follows the goal's sentences, with errors at a rate drawn per dialogue.

Unlike TextWorld's own solution, its moves follow from what a player reads: the goal names every command in words, in
order. After a wrong command that changed the game, the expert undoes it. The small policy is trained on its dialogues.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from amc_agents_textworld import HORIZON, TextWorldTask, TextWorldWorld
from textworld.generator import Game

from amc_agents.types import Task

OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
REVERSED = {"open": "close", "close": "open", "unlock": "lock", "lock": "unlock"}
_DONE = re.compile(r"-= |You (?!can't|already|need|have to|are |see |haven't|must|don't|feel )")
_TAKEN = re.compile(r"take (.*?)(?: from (.*))?")
_PLACED = re.compile(r"(?:insert|put) (.*) (?:into|on) (.*)")


@dataclass
class FollowingExpert:
    """The expert in a dialogue."""

    clauses: Sequence[str]
    """The commands in the goal's words."""
    commands: Sequence[str]
    kinds: Mapping[str, str]
    """Object -> TextWorld's type; "s" is a supporter, such as a table."""
    rng: np.random.Generator
    error_rate: float
    number: int = 0
    """Commands that are done."""
    to_undo: list[str] = field(default_factory=list)
    last: str = ""

    def turn(self, random_action: str) -> str:
        """Choose the next message; a random admissible action is given for errors."""
        thought, action = self._move()
        if self.rng.random() < self.error_rate:
            wrong = [random_action, self.commands[int(self.rng.integers(len(self.commands)))], self.last or "look"]
            action = wrong[int(self.rng.choice(3, p=[0.5, 0.3, 0.2]))]
            if action.startswith("eat"):  # It cannot be undone.
                action = "look"
        self.last = action
        return f"Thought: {thought}\nAction: {action}"

    def observe(self, answer: str) -> None:
        """Learn from the world's answer to the last action."""
        if self.to_undo and self.last == self.to_undo[-1]:
            self.to_undo.pop()
        elif not self.to_undo and self.number < len(self.commands) and self.last == self.commands[self.number]:
            self.number += 1
        elif _DONE.match(answer) and (action := self._inverse(self.last)):
            self.to_undo.append(action)

    def _move(self) -> tuple[str, str]:
        """Return the sub-goal in words, and the next action for it."""
        if self.to_undo:
            return "undo", self.to_undo[-1]
        if self.number < len(self.commands):
            return self.clauses[self.number], self.commands[self.number]
        return "look", "look"

    def _inverse(self, action: str) -> str:
        verb, _, rest = action.partition(" ")
        if verb == "go":
            return f"go {OPPOSITE[rest]}"
        if verb in REVERSED:
            return f"{REVERSED[verb]} {rest}"
        if verb == "drop":
            return f"take {rest}"
        if match := _PLACED.fullmatch(action):
            return f"take {match[1]} from {match[2]}"
        if match := _TAKEN.fullmatch(action):
            thing, place = match.groups()
            if place is None:
                return f"drop {thing}"
            return f"put {thing} on {place}" if self.kinds.get(place) == "s" else f"insert {thing} into {place}"
        return ""


def expert_of(task: Task, rng: np.random.Generator, error_rate: float) -> FollowingExpert:
    """Return an expert for a task, which has read the instruction.

    Raises:
        ValueError: the goal does not have a sentence for each command.
    """
    game = Game.load(str(Path(task.payload.story).with_suffix(".json")))
    commands = game.metadata["walkthrough"]
    kinds = {info.name: info.type for info in game.infos.values()}
    return FollowingExpert(clauses_of(game.objective, len(commands)), commands, kinds, rng, error_rate)


def clauses_of(objective: str, n_commands: int) -> list[str]:
    """Return the goal's sentences without what comes before their last comma.

    Raises:
        ValueError: there are fewer sentences than commands.
    """
    # Every command's sentence ends with a period; what comes before the first and after the last is talk.
    sentences = objective.split(".")[:-1]
    if len(sentences) < n_commands:
        raise ValueError(f"expected {n_commands} sentences, got {objective!r}")
    return [re.split(r"[,!?] ", sentence)[-1].strip() for sentence in sentences[-n_commands:]]


async def play(
    task: Task, rng: np.random.Generator, error_rate: float, horizon: int = HORIZON
) -> list[tuple[str, str]]:
    """Play a dialogue of at most `horizon` steps: [(expert's message, world's answer), ...]."""
    assert isinstance(task.payload, TextWorldTask)
    world = TextWorldWorld()
    await world.reset(task)
    expert, rounds = expert_of(task, rng, error_rate), []
    for _ in range(horizon):
        message = expert.turn(world.random_action(rng))
        answer = await world.step(expert.last)
        expert.observe(answer.observation)
        rounds.append((message, answer.observation))
        if answer.done:
            break
    await world.close()
    return rounds
