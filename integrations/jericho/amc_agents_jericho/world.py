"""A Z-machine game as an `Environment`: rewards are score changes, forks copy the interpreter's state."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep
from amc_agents_jericho.story import Story

History = Sequence[tuple[str, str]]
"""The commands so far, each with the game's answer."""
RULES = (
    "You play a text adventure. Each action is a short command, such as `look`, `north`, `take lamp` or `inventory`."
)
_REFUSED = re.compile(
    r"\s*(save|restore|restart|quit|q|script|transcript|unscript|noscript|recording|replay|verify|undo)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class GameTask:
    """Payload of a `Task` for a `JerichoWorld`."""

    story: str
    """Path of the story file."""
    seed: int = 0
    """Seed of the game's random numbers, until the world is forked."""
    max_score: int | None = None
    """Score that pays 1 in all; None: the maximum that Jericho knows, or else 1, so that rewards are score points."""
    expert: Callable[[History], str] | None = None
    """Returns the expert's next command; None: Jericho's walkthrough, if it has one."""
    commands: tuple[str, ...] = (
        "north",
        "south",
        "east",
        "west",
        "up",
        "down",
        "look",
        "inventory",
        "take all",
        "wait",
    )
    """What `random_action` draws from."""


class JerichoWorld:
    """One episode of a Z-machine game. A fork copies the interpreter's state, with random numbers of its own.

    The reward is the change of the score, divided by the maximum score. The game itself decides when the episode ends.
    Commands that save, restore, undo, restart or quit are refused: they would leave the episode, or write files.
    """

    def __init__(self) -> None:
        self._story: Story | None = None
        self._done = False

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `GameTask` payload."""
        if not isinstance(task.payload, GameTask):
            raise EnvironmentStateError(
                f"JerichoWorld.reset expected a Task with a GameTask payload, got {type(task.payload).__name__} "
                f"(task {task.id!r}): create tasks with story_task or generate_tasks"
            )
        await self.close()
        self._task, self._history, self._score, self._done = task.payload, list[tuple[str, str]](), 0, False
        self._story = Story(task.payload.story, task.payload.seed)
        self._scale = task.payload.max_score or self._story.max_score or 1
        return TimeStep.restart(f"{RULES}\n{self._story.start()}")

    async def step(self, action: str) -> TimeStep:
        """Execute a command."""
        if self._story is None or self._done:
            when = "before reset" if self._story is None else "after the episode's end"
            raise EnvironmentStateError(f"JerichoWorld.step was called {when}: call reset(task) first")
        if match := _REFUSED.match(action):
            return TimeStep.transition(f"The command {match[1].lower()} is not available here.")
        reply = self._story.command(action)
        self._history.append((action, reply.text))
        reward, self._score = (reply.score - self._score) / self._scale, reply.score
        self._done = reply.ended
        return TimeStep.termination(reply.text, reward) if reply.ended else TimeStep.transition(reply.text, reward)

    async def fork(self, seed: int) -> JerichoWorld:
        """Copy the game; its further random numbers are drawn from the seed."""
        twin = JerichoWorld()
        if self._story is not None:
            twin._story = self._story.copy(seed)
            twin._task, twin._history, twin._done = self._task, list(self._history), self._done
            twin._score, twin._scale = self._score, self._scale
        return twin

    async def close(self) -> None:
        """End the game; safe to call twice."""
        story, self._story = self._story, None
        if story is not None:
            story.close()

    def expert_action(self) -> str:
        """Return the task's expert's command, or the next command of Jericho's walkthrough."""
        if self._story is None:
            raise EnvironmentStateError("a JerichoWorld has no expert before reset or after close: call reset first")
        if self._task.expert is not None:
            return self._task.expert(self._history)
        path, done = self._story.walkthrough, 0
        for command, _ in self._history:
            done += done < len(path) and command == path[done]
        return path[done] if done < len(path) else "look"

    def random_action(self, rng: np.random.Generator) -> str:
        """Draw one of the task's commands."""
        return self._task.commands[int(rng.integers(len(self._task.commands)))]
