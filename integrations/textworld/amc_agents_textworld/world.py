"""A TextWorld game as an `Environment`: rewards are points, forks copy the game."""

# mypy: allow-untyped-calls

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import textworld
from jericho.jericho import UnsupportedGameWarning

from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.types import Task, TimeStep
from amc_agents_textworld.interpreter import reuse_interpreters

HORIZON = 30
RULES = (
    "You play a text adventure. Each action is a short command, such as `look`, `inventory`, `go north`, `open chest`, "
    "`take key from table` or `insert key into chest`."
)
reuse_interpreters()
_REFUSED = re.compile(r"\s*(save|restore|restart|quit|q|undo|script|transcript)\b", re.IGNORECASE)
_UNTYPED = re.compile(r"[^\x20-\x7e]+")
_PROMPT = re.compile(r"\s*>\s*(-=.*)?\Z")
_EMPTY_LINES = re.compile(r"\n\s*\n\s*")
_LONGEST_COMMAND = 190


@dataclass(frozen=True)
class TextWorldTask:
    """Payload of a `Task` for a `TextWorldWorld`."""

    story: str
    """Path of the game's story file (.z8), with its description (.json) beside it."""


class TextWorldWorld:
    """One episode of a TextWorld game. The world is deterministic; a fork copies the game.

    The reward is the change of the score, divided by the maximum score. The game ends when it is won or lost. Commands
    that save, restore, undo, restart or quit are refused.

    TextWorld's plans and lists of commands cost more than the game itself, most of all in a fork. So a second game, the
    guide, computes them, from the first time that they are asked for.
    """

    def __init__(self) -> None:
        self._game: Any = None
        self._guide: Any = None
        self._commands: list[str] = []
        self._done = False

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `TextWorldTask` payload."""
        if not isinstance(task.payload, TextWorldTask):
            raise EnvironmentStateError(
                f"TextWorldWorld.reset expected a Task with a TextWorldTask payload, got {type(task.payload).__name__} "
                f"(task {task.id!r}): create tasks with generate_tasks or story_task"
            )
        await self.close()
        self._story = task.payload.story
        self._game, self._state = started(self._story)
        self._score, self._done, self._commands = 0, False, []
        return TimeStep.restart(instruction(self._state))

    async def step(self, action: str) -> TimeStep:
        """Execute a command."""
        self._require("step", ended=self._done)
        if match := _REFUSED.match(action):
            return TimeStep.transition(f"The command {match[1].lower()} is not available here.")
        command = _UNTYPED.sub(" ", action[:_LONGEST_COMMAND]).strip()
        self._commands.append(command)
        self._state, _, self._done = self._game.step(command)
        if self._guide is not None:
            self._guide_state, _, _ = self._guide.step(command)
        score = int(self._state.score or 0)
        reward, self._score = (score - self._score) / max(self._state.max_score, 1), score
        ending = TimeStep.termination if self._done else TimeStep.transition
        return ending(_shown(self._state.feedback), reward)

    async def fork(self, seed: int) -> TextWorldWorld:
        """Copy the game. The seed is unused, since the world is deterministic."""
        twin = TextWorldWorld()
        if self._game is not None:
            with _quiet():
                twin._game, twin._state = self._game.copy(), self._state
            twin._story, twin._commands = self._story, list(self._commands)
            twin._score, twin._done = self._score, self._done
        return twin

    async def close(self) -> None:
        """End the game; safe to call twice."""
        games, self._game, self._guide = (self._game, self._guide), None, None
        for game in games:
            if game is not None:
                game.close()

    def expert_action(self) -> str:
        """Return the next command of TextWorld's own solution, which it adapts to the current state."""
        self._require("expert_action")
        commands = self._guided().policy_commands
        return str(commands[0]) if commands else "look"

    def random_action(self, rng: np.random.Generator) -> str:
        """Draw one of the commands that TextWorld lists as admissible."""
        self._require("random_action")
        commands = sorted(self._guided().admissible_commands)
        return str(commands[int(rng.integers(len(commands)))])

    def _guided(self) -> Any:
        """Return the guide's state. A new guide replays the commands."""
        if self._guide is None:
            self._guide, self._guide_state = started(self._story, guide=True)
            for command in self._commands:
                self._guide_state, _, _ = self._guide.step(command)
        return self._guide_state

    def _require(self, method: str, *, ended: bool = False) -> None:
        if self._game is None or ended:
            when = "after the episode's end" if ended else "before reset or after close"
            raise EnvironmentStateError(f"TextWorldWorld.{method} was called {when}: call reset(task) first")


def started(story: str, *, guide: bool = False) -> tuple[Any, Any]:
    """Start a game: (TextWorld's environment, its first state). A guide's states have a plan and a list of commands.

    Raises:
        ConfigurationError: the story is missing, or has no description beside it.
    """
    infos = textworld.EnvInfos(
        score=True,
        max_score=True,
        won=True,
        lost=True,
        objective=True,
        description=True,
        inventory=True,
        admissible_commands=guide,
        policy_commands=guide,
    )
    try:
        with _quiet():
            game = textworld.start(story, infos)
            state = game.reset()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"TextWorld cannot play {story}: {error}"[:400]) from error
    # Every state holds the description of the game, which never changes: a deep copy of it took most of a fork.
    description = state.game
    description.__deepcopy__ = lambda memo: description
    return game, state


def instruction(state: Any) -> str:
    """Format the first observation of a task: rules, goal, surroundings, inventory."""
    return f"{RULES}\nGoal: {state.objective.strip()}\n{_shown(state.description)}\n{_shown(state.inventory)}"


@contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # The interpreter warns that it cannot read the score; TextWorld reads it itself.
        warnings.simplefilter("ignore", UnsupportedGameWarning)
        yield


def _shown(text: str) -> str:
    return _EMPTY_LINES.sub("\n", _PROMPT.sub("", text.strip())).strip()
