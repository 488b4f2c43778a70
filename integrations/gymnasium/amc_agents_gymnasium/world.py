"""A Gymnasium environment as a text world without forks, which the wrappers of `amc_agents.envs` add."""

from __future__ import annotations

import math

from amc_agents.errors import ConfigurationError, EnvironmentStateError, WorldError
from amc_agents.types import Task, TimeStep
from amc_agents_gymnasium.interface import Env, GymnasiumTask, TextInterface


class GymnasiumWorld:
    """One episode of a Gymnasium environment (a `World` that is `Reseedable`).

    A text that is no action leaves the environment unchanged, and the observation states the reason.
    """

    def __init__(self, interface: TextInterface) -> None:
        self._interface = interface
        self._env: Env | None = None
        self._active = False

    async def reset(self, task: Task) -> TimeStep:
        """Start a task with a `GymnasiumTask` payload."""
        if not isinstance(task.payload, GymnasiumTask):
            raise EnvironmentStateError(
                f"GymnasiumWorld.reset expected a Task with a GymnasiumTask payload, got "
                f"{type(task.payload).__name__} (task {task.id!r})"
            )
        self._env = self._env or self._interface.make()
        first = TimeStep.restart(self._interface.instruction(self._env, task.payload))
        self._active = True
        return first

    async def step(self, action: str) -> TimeStep:
        """Translate and execute an action."""
        if self._env is None or not self._active:
            raise EnvironmentStateError("GymnasiumWorld.step was called before reset or after the end: call reset")
        try:
            chosen = self._interface.action_of(self._env, action)
        except ConfigurationError:  # A ValueError too, but not the agent's mistake.
            raise
        except ValueError as error:
            return TimeStep.transition(f"Invalid action: {error}")
        observation, reward, terminated, truncated, info = self._env.step(chosen)
        if not math.isfinite(float(reward)):
            raise WorldError(f"the environment's reward after {action!r:.80} is {reward}: expected a finite number")
        self._active = not (terminated or truncated)
        text = self._interface.text_of(self._env, observation, info)
        # Gymnasium allows both at once: the rules then ended the episode in its last permitted step.
        return TimeStep(text, float(reward), bool(terminated), bool(truncated and not terminated))

    async def reseed(self, seed: int) -> None:
        """Draw the randomness of all further steps from `seed`."""
        if self._env is not None:
            self._interface.seed_future(self._env, seed)

    async def close(self) -> None:
        """Close the environment; safe to call twice."""
        env, self._env, self._active = self._env, None, False
        if env is not None:
            env.close()
