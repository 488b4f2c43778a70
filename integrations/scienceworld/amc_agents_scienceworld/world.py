"""ScienceWorld as an `Environment`: rewards are score changes, a fatal mistake ends the episode, forks are replays."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import numpy as np

from amc_agents.envs import ReplayFork
from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep
from amc_agents_scienceworld.engine import Simulation, engine
from amc_agents_scienceworld.gold import gold_path

HORIZON = 20
"""Maximum number of steps per episode in the AMC paper."""
LONG_HORIZON = 100
"""The engine's own step limit."""
_SPACES = re.compile(r"\s+")
_LONGEST_ACTION = 500
"""Characters of an action that reach the engine."""


@dataclass(frozen=True)
class ScienceWorldTask:
    """Payload of a `Task` for a `ScienceWorld`."""

    name: str
    """Name of the task, such as `find-plant`."""
    variation: int
    """Number of the variation."""
    simplifications: str = ""
    """The engine's simplifications, separated by commas, such as `easy`."""


class Episode:
    """One episode of a ScienceWorld task, without forks. Use `ScienceWorld`.

    Args:
        seed: seed of the random events, such as the inheritance of traits. The initial state depends on the task only.
    """

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._simulation: Simulation | None = None

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `ScienceWorldTask` payload."""
        if not isinstance(task.payload, ScienceWorldTask):
            raise EnvironmentStateError(
                f"ScienceWorld.reset expected a Task with a ScienceWorldTask payload, got "
                f"{type(task.payload).__name__} (task {task.id!r}): create tasks with generate_tasks"
            )
        await self.close()
        self._payload, self._actions, self._score, self._done = task.payload, list[str](), 0.0, False
        await self.reseed(self._seed)
        self._simulation = await asyncio.to_thread(_load, task.payload)
        return TimeStep.restart(await asyncio.to_thread(instruction, self._simulation))

    async def step(self, action: str) -> TimeStep:
        """Execute an action.

        The reward is the change of the score. A negative score ends the episode with the return -1.
        """
        if self._simulation is None or self._done:
            when = "before reset" if self._simulation is None else "after the episode's end"
            raise EnvironmentStateError(f"ScienceWorld.step was called {when}: call reset(task) first")
        command = _command(action)
        # Drawn even if the action uses no randomness, so that the answers depend on the number of steps alone.
        answer = await asyncio.to_thread(self._simulation.step, command, int(self._luck.integers(2**48)))
        self._actions.append(command)
        score = -1.0 if answer.score < 0 else answer.score
        reward, self._score = score - self._score, score
        self._done = answer.completed or score < 0
        ending = TimeStep.termination if self._done else TimeStep.transition
        return ending(answer.observation, reward)

    async def reseed(self, seed: int) -> None:
        """Draw all further random events from the seed."""
        self._luck = np.random.default_rng(seed)

    async def close(self) -> None:
        """Release the world; safe to call twice."""
        simulation, self._simulation = self._simulation, None
        if simulation is not None:
            await asyncio.to_thread(simulation.close)

    def expert_action(self) -> str:
        """Return the next action of the gold path: the first that has not been executed yet, in order."""
        gold = gold_path(self._payload.name, self._payload.variation, self._payload.simplifications)
        done = 0
        for action in self._actions:
            done += done < len(gold) and action == gold[done]
        return gold[done] if done < len(gold) else "look around"

    def random_action(self, rng: np.random.Generator) -> str:
        """Draw one of the actions that the engine lists as valid, which takes it about 0.1 s."""
        if self._simulation is None:
            raise EnvironmentStateError("a ScienceWorld has no actions before reset or after close: call reset first")
        valid = sorted(self._simulation.ask("getValidActionObjectCombinations"))
        return str(valid[int(rng.integers(len(valid)))])


class ScienceWorld(ReplayFork):
    """A ScienceWorld task. A fork replays the past in a new world of the same JVM, and compares every answer.

    The world is deterministic given its seed; the random events of a fork are drawn from the fork's seed. The world
    never truncates: the caller limits the steps.

    Args:
        seed: seed of the random events.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(Episode, seed)


def instruction(simulation: Simulation) -> str:
    """Format the first observation of a task: actions, goal, surroundings."""
    actions = [str(action) for action in simulation.ask("getPossibleActions") if action != "reset task"]
    goal = simulation.ask("getTaskDescription")
    return f"Actions: {', '.join(actions)}\nGoal: {goal}\n{simulation.ask('freeActionLook')}"


def _load(payload: ScienceWorldTask) -> Simulation:
    return engine().load(payload.name, payload.variation, payload.simplifications)


def _command(action: str) -> str:
    # The connection encodes in UTF-8, and the engine reads a single line.
    text = action[:_LONGEST_ACTION].encode("utf-8", "replace").decode()
    return _SPACES.sub(" ", text.strip().rstrip("."))
