"""Forks for worlds that have none of their own: by replay, by copy, or an honest refusal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from amc_agents.errors import EnvironmentStateError, ForkError, ReplayDivergence
from amc_agents.types import Task, TimeStep


class World(Protocol):
    """An `Environment` that may lack `fork`: what the wrappers of this file are put around."""

    async def reset(self, task: Task) -> TimeStep:
        """As `Environment.reset`."""
        ...

    async def step(self, action: str) -> TimeStep:
        """As `Environment.step`."""
        ...

    async def close(self) -> None:
        """As `Environment.close`."""
        ...


@runtime_checkable
class Reseedable(Protocol):
    """A world whose randomness from now on can be drawn afresh."""

    async def reseed(self, seed: int) -> None:
        """Draw everything that is still to come from `seed`; the present state stays."""
        ...


class ReplayFork:
    """Forks a world by repeating its actions in a fresh one, each answer checked against the record.

    `make(seed)` has to give worlds that answer the same actions alike. The future of a fork is drawn from
    its own seed where the world is `Reseedable`. Where it is not, a fork continues with the very luck of
    its origin: that is truthful for deterministic worlds only, and for a stochastic one the siblings of a
    particle would all meet the same future.

    Args:
        make: gives a fresh world; called once per reset and once per fork.
        seed: handed to `make`; a fork's past is replayed with its origin's.
    """

    def __init__(self, make: Callable[[int], World], seed: int = 0) -> None:
        self._make, self._seed = make, seed
        self._world: World | None = None
        self._task: Task | None = None
        self._answers: list[TimeStep] = []
        self._actions: list[str] = []
        self._reseeds: list[tuple[int, int]] = []

    async def reset(self, task: Task) -> TimeStep:
        """Start `task` in a fresh world of the seed given at construction."""
        await self.close()
        self._world = self._make(self._seed)
        first = await self._world.reset(task)
        self._task, self._answers, self._actions, self._reseeds = task, [first], [], []
        return first

    async def step(self, action: str) -> TimeStep:
        """Carry out one action and keep it, with its answer, on record."""
        if self._world is None:
            raise EnvironmentStateError("ReplayFork.step was called before reset or after close: call reset first")
        answer = await self._world.step(action)
        self._actions.append(action)
        self._answers.append(answer)
        return answer

    async def fork(self, seed: int) -> ReplayFork:
        """A fresh world brought to this one's state, then reseeded where it can be.

        Raises:
            ReplayDivergence: at the first answer (observation, reward or end) that differs from the record.
        """
        if self._task is None:
            return ReplayFork(self._make, seed)
        twin = ReplayFork(self._make, self._seed)
        try:
            await self._replay_into(twin, self._task)
            await twin._reseed(seed)
        except BaseException:
            await twin.close()
            raise
        return twin

    async def close(self) -> None:
        """Close the world, if one is open."""
        world, self._world = self._world, None
        if world is not None:
            await world.close()

    async def _replay_into(self, twin: ReplayFork, task: Task) -> None:
        reseeds = list(self._reseeds)
        for position, recorded in enumerate(list(self._answers)):
            action = self._actions[position - 1] if position else ""
            answer = await (twin.step(action) if position else twin.reset(task))
            if answer != recorded:
                raise ReplayDivergence(position, action, _shown(recorded, answer), _shown(answer, recorded))
            while reseeds and reseeds[0][0] == position:
                await twin._reseed(reseeds.pop(0)[1])

    async def _reseed(self, seed: int) -> None:
        # On record with its position: a fork of this fork has to live through the same changes of luck.
        self._reseeds.append((len(self._actions), seed))
        if isinstance(self._world, Reseedable):
            await self._world.reseed(seed)


class CopyFork:
    """Forks an in-memory world by `copy.deepcopy`, then reseeds it where it is `Reseedable`.

    The task is shared, not copied. Randomness outside the world (a module's global state) is not copied
    with it; `amc_agents.testing.check_environment` shows that up.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._task: Task | None = None

    async def reset(self, task: Task) -> TimeStep:
        """As the wrapped world's."""
        self._task = task
        return await self._world.reset(task)

    async def step(self, action: str) -> TimeStep:
        """As the wrapped world's."""
        return await self._world.step(action)

    async def fork(self, seed: int) -> CopyFork:
        """A deep copy of the wrapped world.

        Raises:
            ForkError: where the world holds something that cannot be copied (a lock, a socket, a process).
        """
        shared = {} if self._task is None else {id(part): part for part in (self._task, self._task.payload)}
        try:
            world = copy.deepcopy(self._world, shared)
        except Exception as error:
            raise ForkError(
                f"{type(self._world).__name__} cannot be copied ({type(error).__name__}: {error}): "
                "fork it by replay (ReplayFork), or give it a fork of its own"
            ) from error
        twin = CopyFork(world)
        twin._task = self._task
        if isinstance(world, Reseedable):
            try:
                await world.reseed(seed)
            except BaseException:
                await twin.close()
                raise
        return twin

    async def close(self) -> None:
        """As the wrapped world's."""
        await self._world.close()


class NoFork:
    """A world that can neither be copied nor replayed: it runs, and refuses to fork."""

    def __init__(self, world: World, reason: str) -> None:
        self._world, self._reason = world, reason

    async def reset(self, task: Task) -> TimeStep:
        """As the wrapped world's."""
        return await self._world.reset(task)

    async def step(self, action: str) -> TimeStep:
        """As the wrapped world's."""
        return await self._world.step(action)

    async def fork(self, seed: int) -> NoFork:
        """Always raises `ForkError`, with the reason given at construction."""
        raise ForkError(
            f"{type(self._world).__name__} cannot be forked: {self._reason}. "
            "Run it without resampling (resample=Never()), or give it a fork of its own"
        )

    async def close(self) -> None:
        """As the wrapped world's."""
        await self._world.close()


def _shown(answer: TimeStep, other: TimeStep) -> str:
    # The observation says it best; where it is the same, the whole time step has to.
    return answer.observation if answer.observation != other.observation else repr(answer)
