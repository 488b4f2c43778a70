"""A solo game of TextArena as a text world without forks, which the wrappers of `amc_agents.envs` add."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import textarena
from textarena import ObservationType

from amc_agents.errors import ConfigurationError, EnvironmentStateError, WorldError
from amc_agents.types import Task, TimeStep
from amc_agents_textarena.luck import Luck

LONGEST_ACTION = 4_000
"""Longest action in characters: some games fail on a number of more than 4,300 digits."""
_SHOWN = frozenset(ObservationType) - {ObservationType.PLAYER_ACTION}
_INVALID = "Invalid Move: "
_TOO_LONG = f"Invalid action: it has more than {LONGEST_ACTION:,} characters."


@dataclass(frozen=True)
class TextArenaTask:
    """Payload of a `Task` for a `TextArenaWorld`."""

    game: str
    """The game's id, for example `LightsOut-v0`."""
    seed: int
    """Seed of the puzzle and of everything that the game draws later."""


class TextArenaWorld:
    """One solo game (a `World` that is `Reseedable`), with random state of its own.

    Observations contain what the game wrote since the last action, without the echo of the action. The reward is the
    game's, in the last step; its reason ends the last observation.
    """

    def __init__(self) -> None:
        self._luck = Luck(0)
        self._env: Any = None
        self._active = False

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `TextArenaTask` payload.

        Raises:
            ConfigurationError: TextArena has no such game, or the game needs data that is not installed.
        """
        if not isinstance(task.payload, TextArenaTask):
            raise EnvironmentStateError(
                f"TextArenaWorld.reset expected a Task with a TextArenaTask payload, got "
                f"{type(task.payload).__name__} (task {task.id!r}): create tasks with textarena_world(game).tasks"
            )
        return TimeStep.restart(self.start(task.payload))

    def start(self, task: TextArenaTask) -> str:
        """Start a game and return its first observation."""
        self._luck = Luck(task.seed)
        with self._luck.drawn(), redirect_stdout(io.StringIO()):
            try:
                self._env = textarena.make(f"{task.game}-raw")
                self._env.reset(num_players=1, seed=task.seed)
            except Exception as error:
                raise ConfigurationError(
                    f"TextArena cannot start the solo game {task.game!r} ({type(error).__name__}: {error!s:.150}): "
                    "check its name, and the data or key that it needs"
                ) from error
            self._active = True
            return self._written()

    async def step(self, action: str) -> TimeStep:
        """Make a move; the game judges whether it is valid."""
        if not self._active:
            raise EnvironmentStateError("TextArenaWorld.step was called before reset or after the end: call reset")
        if len(action) > LONGEST_ACTION:
            return TimeStep.transition(_TOO_LONG)
        with self._luck.drawn(), redirect_stdout(io.StringIO()):
            done, _ = self._env.step(action)
            text = self._written()
        if not done:
            return TimeStep.transition(text)
        self._active = False
        return self._ended(text)

    async def reseed(self, seed: int) -> None:
        """Draw everything that follows from `seed`."""
        self._luck = Luck(seed)

    async def close(self) -> None:
        """Release the game; safe to call twice."""
        self._env, self._active = None, False

    def _written(self) -> str:
        _, messages = self._env.get_observation()
        # Some games pass the action's echo in the wrong order, so that its kind is a text.
        return "\n".join(text for _, text, kind in messages if kind in _SHOWN)

    def _ended(self, text: str) -> TimeStep:
        rewards, info = self._env.close()
        reward, reason = (rewards or {}).get(0), info[0].get("reason") or ""
        if isinstance(reward, str):
            # Some games pass the reward and the reason of an invalid move in the wrong order.
            reason, reward = _INVALID + reward, _number(reason.removeprefix(_INVALID))
        if not isinstance(reward, int | float):
            raise WorldError(f"the game {self._env.env_id} ended without a reward: this is a defect of the game")
        return TimeStep.termination("\n".join(filter(None, (text, reason))), float(reward))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
