"""Rewards of a run: from the worlds, from a function of the agent's state, from both, or none."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, get_args

from amc_agents.critics.adapting import real_number
from amc_agents.errors import ConfigurationError, WorldError
from amc_agents.population.particle import Particle, State
from amc_agents.quoting import quoted
from amc_agents.settings import RewardSource

RewardFunction = Callable[[State], float | Awaitable[float]]
"""Computes the return so far from the agent's state."""


def reward_source(
    given: RewardSource | Literal[False] | None, *, has_world: bool, has_function: bool
) -> RewardSource | None:
    """Return the source of the rewards; None: the run has no rewards.

    Args:
        given: `rewards=` of `amc`; None: the only available source.
        has_world: whether the agent acts in worlds.
        has_function: whether `reward=` is given.

    Raises:
        ConfigurationError: two sources are available and `given` names none, or the named source is missing.
    """
    if given is None:
        if has_world and has_function:
            raise ConfigurationError(
                'environment= and reward= can both give rewards: choose rewards="world", "function" or "both" (sum)'
            )
        return "world" if has_world else "function" if has_function else None
    if given is not False and given not in get_args(RewardSource):
        raise ConfigurationError(f'rewards must be "world", "function", "both" or False, got {quoted(given)}')
    if given is False:
        if has_function:
            raise ConfigurationError("rewards=False means that the run has no rewards: omit reward=")
        return None
    if given != "function" and not has_world:
        raise ConfigurationError(f'rewards="{given}" needs worlds with rewards: give environment=')
    if given != "world" and not has_function:
        raise ConfigurationError(f'rewards="{given}" needs a function of the state: give reward=')
    return given


@dataclass(frozen=True)
class Rewards:
    """Computes the rewards of particles."""

    source: RewardSource | None = None
    """Source of the rewards; None: the run has no rewards."""
    function: RewardFunction | None = None
    in_thread: bool = False
    """Whether a sync function is called in a thread, so that a time limit can abandon it."""

    async def since_last_step(self, particle: Particle) -> float:
        """Compute the reward of a particle's newest step, and add it to the particle's return."""
        reward = 0.0
        if particle.world is not None and self.source in ("world", "both"):
            reward = particle.world.take_reward()
        past = particle.past
        before, world_return = past.return_ - past.world_return, past.world_return + reward
        if self.function is not None and self.source in ("function", "both"):
            reward += await self._function_return(self.function, particle) - before
        particle.record(return_=past.return_ + reward, world_return=world_return)
        return reward

    async def _function_return(self, function: RewardFunction, particle: Particle) -> float:
        in_thread = self.in_thread and not inspect.iscoroutinefunction(function)
        answer = await asyncio.to_thread(function, particle.state) if in_thread else function(particle.state)
        answer = await answer if isinstance(answer, Awaitable) else answer
        try:
            return_ = real_number(answer)
        except ValueError as error:
            raise WorldError(f"reward= must give a number, got {error} after step {particle.steps}") from error
        if not math.isfinite(return_):
            raise WorldError(f"reward= must give a finite return, got {return_} after step {particle.steps}")
        return return_
