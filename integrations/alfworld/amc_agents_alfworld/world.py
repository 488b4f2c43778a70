"""An ALFWorld game as an `Environment`: the official engine, reward 1 for the goal, forks copy the game."""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import alfworld
import numpy as np

from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.types import Task, TimeStep
from amc_agents_alfworld.engine import Engine

HORIZON = 30
_SPACES = re.compile(r"\s+")
_LONGEST_COMMAND = 200


@dataclass(frozen=True)
class AlfworldTask:
    """Payload of a `Task` for an `AlfworldWorld`."""

    game: Mapping[str, str] = field(repr=False)
    """`pddl_domain`, `grammar` and `pddl_problem`, as in a `game.tw-pddl` file."""
    task_type: str
    """One of `TASK_TYPES`."""


class AlfworldWorld:
    """One episode of an ALFWorld game. The world is deterministic; a fork copies the game."""

    def __init__(self) -> None:
        self._game: Any = None
        self._done = False

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with an `AlfworldTask` payload."""
        if not isinstance(task.payload, AlfworldTask):
            raise EnvironmentStateError(
                f"AlfworldWorld.reset expected a Task with an AlfworldTask payload, got {type(task.payload).__name__} "
                f"(task {task.id!r}): create tasks with generate_tasks or official_tasks"
            )
        await self.close()
        self._game, self._state = started(task.payload.game)
        self._done = False
        return TimeStep.restart(shown(self._state.feedback))

    async def step(self, action: str) -> TimeStep:
        """Execute a command; the engine answers `Nothing happens.` to one that is not admissible."""
        self._require("step", ended=self._done)
        command = _SPACES.sub(" ", action[:_LONGEST_COMMAND]).strip().rstrip(".").lower()
        self._state, _, self._done = self._game.step(command)
        text = shown(self._state.feedback)
        return TimeStep.termination(text, 1.0) if self._done else TimeStep.transition(text)

    async def fork(self, seed: int) -> AlfworldWorld:
        """Copy the game. The seed is unused, since the world is deterministic.

        Raises:
            ForkError: the planner of the copy is in another state after the same operators.
        """
        twin = AlfworldWorld()
        if self._game is not None:
            twin._game, twin._state, twin._done = self._game.twin(), self._state, self._done
        return twin

    async def close(self) -> None:
        """End the game; safe to call twice."""
        game, self._game = self._game, None
        if game is not None:
            game.close()

    def expert_action(self) -> str:
        """Return the first command of the engine's plan from the current state."""
        self._require("expert_action")
        plan = self._game.plan()
        return plan[0] if plan else "look"

    def random_action(self, rng: np.random.Generator) -> str:
        """Draw one of the commands that the engine lists as admissible."""
        self._require("random_action")
        commands = self._state.admissible_commands  # Sorted by the engine.
        return str(commands[int(rng.integers(len(commands)))])

    def _require(self, method: str, *, ended: bool = False) -> None:
        if self._game is None or ended:
            when = "after the episode's end" if ended else "before reset or after close"
            raise EnvironmentStateError(f"AlfworldWorld.{method} was called {when}: call reset(task) first")


def started(game: Mapping[str, str]) -> tuple[Any, Any]:
    """Start a game: (the engine, its first state).

    Raises:
        ConfigurationError: the engine cannot read the game.
    """
    engine = Engine()
    try:
        engine.load(game)
    except Exception as error:
        engine.close()
        raise ConfigurationError(
            f"ALFWorld's engine cannot read this game: {type(error).__name__}: {error}"[:400]
        ) from error
    return engine, engine.reset()


def game_data(pddl_problem: str, description: str) -> dict[str, str]:
    """Return the data of a game: ALFWorld's domain and grammar, with this problem and the goal in words."""
    domain, grammar = _logic()
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", description),
        "pddl_problem": pddl_problem,
    }


def read_game(path: Path) -> dict[str, str]:
    """Read a `game.tw-pddl` file.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {name: data[name] for name in ("pddl_domain", "grammar", "pddl_problem")}
    except (OSError, ValueError, KeyError) as error:
        raise ConfigurationError(f"{path} is not an ALFWorld game: {type(error).__name__}: {error}"[:400]) from error


@lru_cache(maxsize=1)
def _logic() -> tuple[str, str]:
    folder = Path(str(alfworld.__file__)).parent / "data"
    return (folder / "alfred.pddl").read_text(encoding="utf-8"), (folder / "alfred.twl2").read_text(encoding="utf-8")


def shown(text: str) -> str:
    """Return the engine's text without its banner."""
    return text.replace("-= Welcome to TextWorld, ALFRED! =-", "").strip()
