"""A BabyAI level as a text world: six actions, observations in words, forks by copy."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from minigrid.core.actions import Actions
from minigrid.minigrid_env import MiniGridEnv

from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep
from amc_agents_minigrid.levels import make_level
from amc_agents_minigrid.view import describe

ACTIONS = {
    "turn left": Actions.left,
    "turn right": Actions.right,
    "go forward": Actions.forward,
    "pick up": Actions.pickup,
    "drop": Actions.drop,
    "toggle": Actions.toggle,
}
"""Action text -> MiniGrid action."""
HORIZON = 30
"""Maximum steps per episode in the LAC paper."""
_LISTED = "Actions: " + ", ".join(ACTIONS)
_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class BabyAITask:
    """Payload of a `Task` for a `BabyAIWorld`."""

    level: str
    """The level's id in Gymnasium's registry."""
    seed: int
    """Seed of the room, the objects and the mission."""
    horizon: int = HORIZON
    """Number of steps after which the world truncates the episode."""
    expert_steps: int | None = None
    """Number of steps of the level's bot, a measure of difficulty; None: not counted."""


class BabyAIWorld:
    """One episode of a BabyAI level. The world is deterministic given the task; a fork is a copy.

    An unknown action costs a step, changes nothing, and its observation lists the actions. An action without effect,
    such as walking into a wall, leaves the view unchanged.

    Args:
        timed: reward 1 - 0.9 t / horizon for success in step t, as in BabyAI; False: reward 1. Failure gives 0.
    """

    def __init__(self, *, timed: bool = True) -> None:
        self._timed = timed
        self._level: MiniGridEnv | None = None
        self._done = False

    @property
    def level(self) -> MiniGridEnv:
        """The MiniGrid environment in its current state, for experts and tests; acting on it changes this world."""
        if self._level is None:
            raise EnvironmentStateError("BabyAIWorld has no level before reset or after close: call reset(task) first")
        return self._level

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `BabyAITask` payload."""
        if not isinstance(task.payload, BabyAITask):
            raise EnvironmentStateError(
                f"BabyAIWorld.reset expected a Task with a BabyAITask payload, got {type(task.payload).__name__} "
                f"(task {task.id!r}): create tasks with amc_agents_minigrid.generate_task"
            )
        self._level = make_level(task.payload.level, task.payload.seed, task.payload.horizon)
        self._done = False
        return TimeStep.restart(instruction(self._level))

    async def step(self, action: str) -> TimeStep:
        """Execute one of the six actions; the observation of any other text lists them."""
        if self._level is None or self._done:
            when = "before reset" if self._level is None else "after the episode's end"
            raise EnvironmentStateError(f"BabyAIWorld.step was called {when}: call reset(task) first")
        known, earned, terminated, truncated = act(self._level, action)
        self._done = terminated or truncated
        view = describe(self._level)
        observation = view if known else f"There is no such action.\n{_LISTED}\n{view}"
        if terminated:
            return TimeStep.termination(observation, earned if self._timed else float(earned > 0))
        return TimeStep.truncation(observation) if truncated else TimeStep.transition(observation)

    async def fork(self, seed: int) -> BabyAIWorld:
        """Copy the world. The seed is unused, since the world is deterministic after the reset."""
        twin = BabyAIWorld(timed=self._timed)
        twin._level, twin._done = self._level and copied(self._level), self._done
        return twin

    async def close(self) -> None:
        """Release the level."""
        self._level = None


def instruction(level: MiniGridEnv) -> str:
    """Format the first observation of a task: actions, goal, view."""
    return f"{_LISTED}\nGoal: {level.mission}\n{describe(level)}"


def act(level: MiniGridEnv, action: str) -> tuple[bool, float, bool, bool]:
    """Execute an action as an agent wrote it: (whether it is known, reward, terminated, truncated)."""
    known = ACTIONS.get(_SPACES.sub(" ", action.strip().rstrip(".")).lower())
    # MiniGrid's seventh action only counts as a step.
    _, reward, terminated, truncated, _ = level.step(Actions.done if known is None else known)
    return known is not None, float(reward), terminated, truncated


def copied(level: MiniGridEnv) -> MiniGridEnv:
    """Copy a level with its state."""
    # The description of the level's interface never changes, and would take most of the time of deepcopy.
    constant = (level.action_space, level.observation_space, level.spec)
    return copy.deepcopy(level, {id(part): part for part in constant})
