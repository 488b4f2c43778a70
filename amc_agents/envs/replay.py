"""Wrappers that give a world a `fork`: by replay, by copy, or by refusing with an explanation."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from amc_agents.errors import EnvironmentStateError, ForkError, ReplayDivergence
from amc_agents.types import Task, TimeStep


class World(Protocol):
    """An `Environment` that may lack `fork`, as the wrappers of this module take it."""

    async def reset(self, task: Task) -> TimeStep:
        """Start a task, like `Environment.reset`."""
        ...

    async def step(self, action: str) -> TimeStep:
        """Execute an action, like `Environment.step`."""
        ...

    async def close(self) -> None:
        """Release the world's resources, like `Environment.close`."""
        ...


@runtime_checkable
class Reseedable(Protocol):
    """A world whose future randomness can be reseeded."""

    async def reseed(self, seed: int) -> None:
        """Draw all future randomness from `seed`; keep the current state."""
        ...


class ReplayFork:
    """Forks a world by replaying its actions in a new world and checking each answer against the record.

    `make(seed)` must return worlds that give the same answers to the same actions. If the world is `Reseedable`, the
    future of a fork is drawn from the fork's seed. Otherwise the fork continues with the random stream of its origin,
    which is correct only for deterministic worlds: in a stochastic world, siblings would all see the same future.

    Args:
        make: creates a world; called once per reset and once per fork.
        seed: argument of `make`. A fork replays its past with the seed of its origin.
    """

    def __init__(self, make: Callable[[int], World], seed: int = 0) -> None:
        self._make, self._seed = make, seed
        self._world: World | None = None
        self._task: Task | None = None
        self._answers: list[TimeStep] = []
        self._actions: list[str] = []
        self._reseeds: list[tuple[int, int]] = []

    @property
    def world(self) -> World:
        """The wrapped world in its current state; a step made in it directly is not recorded.

        Raises:
            EnvironmentStateError: before `reset` and after `close`.
        """
        if self._world is None:
            raise EnvironmentStateError("a ReplayFork has no world before reset or after close: call reset first")
        return self._world

    async def reset(self, task: Task) -> TimeStep:
        """Start `task` in a new world with the seed given at construction."""
        await self.close()
        self._world = self._make(self._seed)
        first = await self._world.reset(task)
        self._task, self._answers, self._actions, self._reseeds = task, [first], [], []
        return first

    async def step(self, action: str) -> TimeStep:
        """Execute an action, and record it with its answer."""
        if self._world is None:
            raise EnvironmentStateError("ReplayFork.step was called before reset or after close: call reset first")
        answer = await self._world.step(action)
        self._actions.append(action)
        self._answers.append(answer)
        return answer

    async def fork(self, seed: int) -> ReplayFork:
        """Replay the recorded actions in a new world, then reseed it if possible.

        Raises:
            ReplayDivergence: an answer (observation, reward or end) differs from the record.
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
        # Recorded with its position, since a fork of this fork must repeat the same reseedings.
        self._reseeds.append((len(self._actions), seed))
        if isinstance(self._world, Reseedable):
            await self._world.reseed(seed)


class CopyFork:
    """Forks an in-memory world by `copy.deepcopy`, then reseeds it if it is `Reseedable`.

    The task is shared, not copied. Random state outside the world, such as a module's global generator, is not copied;
    `amc_agents.testing.check_environment` detects this.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._task: Task | None = None

    async def reset(self, task: Task) -> TimeStep:
        """Reset the wrapped world."""
        self._task = task
        return await self._world.reset(task)

    async def step(self, action: str) -> TimeStep:
        """Execute an action in the wrapped world."""
        return await self._world.step(action)

    async def fork(self, seed: int) -> CopyFork:
        """Deep-copy the wrapped world.

        Raises:
            ForkError: the world holds an object that cannot be copied, such as a lock, a socket or a process.
        """
        shared = {} if self._task is None else {id(part): part for part in (self._task, self._task.payload)}
        try:
            world = copy.deepcopy(self._world, shared)
        except Exception as error:
            raise ForkError(
                f"{type(self._world).__name__} cannot be copied ({type(error).__name__}: {error}): "
                "use ReplayFork, or implement fork() in the world"
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
        """Close the wrapped world."""
        await self._world.close()


class NoFork:
    """A world that can be neither copied nor replayed: it runs, and `fork` raises."""

    def __init__(self, world: World, reason: str) -> None:
        self._world, self._reason = world, reason

    async def reset(self, task: Task) -> TimeStep:
        """Reset the wrapped world."""
        return await self._world.reset(task)

    async def step(self, action: str) -> TimeStep:
        """Execute an action in the wrapped world."""
        return await self._world.step(action)

    async def fork(self, seed: int) -> NoFork:
        """Raise `ForkError` with the reason given at construction."""
        raise ForkError(
            f"{type(self._world).__name__} cannot be forked: {self._reason}. "
            "Run it without resampling (resample=Never()), or implement fork() in the world"
        )

    async def close(self) -> None:
        """Close the wrapped world."""
        await self._world.close()


def _shown(answer: TimeStep, other: TimeStep) -> str:
    # Show the observation, or the whole time step if the observations are equal.
    return answer.observation if answer.observation != other.observation else repr(answer)
