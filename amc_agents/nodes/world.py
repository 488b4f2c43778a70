"""The worlds that particles live in: made, recorded, and found by their tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from amc_agents.errors import EnvironmentStateError, ForkError
from amc_agents.types import Environment, Task, TimeStep

_current: ContextVar[Environment | None] = ContextVar("amc_environment", default=None)


def current_environment() -> Environment:
    """The world of the particle that calls: for tools and nodes of an agent that runs under `amc`.

    Raises:
        EnvironmentStateError: outside of any particle and of `use_environment`.
    """
    environment = _current.get()
    if environment is None:
        raise EnvironmentStateError(
            "current_environment() was called where there is no world: run the agent through "
            "amc(..., environment=...), or within `with use_environment(world):`"
        )
    return environment


@contextmanager
def use_environment(environment: Environment) -> Iterator[None]:
    """Run an agent once, outside of `amc`, in a world of its own."""
    token = _current.set(environment)
    try:
        yield
    finally:
        _current.reset(token)


def set_environment(environment: Environment | None) -> None:
    """Make `environment` the current one for the rest of this context."""
    _current.set(environment)


class RecordingWorld:
    """A particle's world: passes everything on, and keeps what the weights need to know."""

    def __init__(self, inner: Environment) -> None:
        self.inner = inner
        self.ended = False
        self._reward = 0.0

    def take_reward(self) -> float:
        """Reward since the last call."""
        reward, self._reward = self._reward, 0.0
        return reward

    async def reset(self, task: Task) -> TimeStep:
        """Refused: the world's task belongs to the run, not to the agent."""
        raise EnvironmentStateError("an agent under amc() may not reset its world: amc resets it once, at the start")

    async def step(self, action: str) -> TimeStep:
        """Carry out an action and remember reward and end."""
        answer = await self.inner.step(action)
        self._reward += answer.reward
        self.ended = self.ended or answer.done
        return answer

    async def fork(self, seed: int) -> RecordingWorld:
        """The same past, another future."""
        copy = RecordingWorld(await self.inner.fork(seed))
        copy.ended, copy._reward = self.ended, self._reward
        return copy

    async def close(self) -> None:
        """Close the world itself."""
        await self.inner.close()


async def make_worlds(
    make: Callable[[], Any], n_particles: int, rng: np.random.Generator
) -> tuple[list[RecordingWorld], Task]:
    """One started world per particle: the first is reset, the others are forks of it with luck of their own.

    A world that refuses to fork is made and reset N times instead: enough for a run that never resamples.
    """
    environment, task = await _made(make)
    await environment.reset(task)
    worlds = [RecordingWorld(environment)]
    for _ in range(n_particles - 1):
        try:
            worlds.append(await worlds[0].fork(int(rng.integers(2**63))))
        except ForkError:
            another, task = await _made(make)
            await another.reset(task)
            worlds.append(RecordingWorld(another))
    return worlds, task


async def _made(make: Callable[[], Any]) -> tuple[Environment, Task]:
    made = make()
    if asyncio.iscoroutine(made):
        made = await made
    environment, task = made
    return environment, task
