"""The worlds of particles: create and close them, record rewards, give tools access, keep the winner's open."""

from __future__ import annotations

import asyncio
import atexit
import inspect
import logging
import math
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar, overload
from weakref import WeakSet

import numpy as np

from amc_agents.concurrency.background import on_background_loop, run_in_background, start_in_background
from amc_agents.concurrency.gather import was_cancelled
from amc_agents.context import changed_context, particle_context
from amc_agents.critics.adapting import real_number
from amc_agents.errors import AgentContractError, ConfigurationError, EnvironmentStateError, ForkError, WorldError
from amc_agents.logs import log, room_logger
from amc_agents.quoting import quoted
from amc_agents.runtime.tracing import traced_step
from amc_agents.types import Environment, Forkable, Task, TimeStep

T = TypeVar("T")
World = TypeVar("World")

CLOSING_LIMIT_S = 10.0
"""Maximum time in seconds that an ended run waits until a world is created or closed."""
UNUSED_LIMIT_S = 5.0
"""Maximum time in seconds that a world stays open for a call that goes on after its particle has failed or was cut."""

_log = room_logger(__name__)


@overload
def current_environment() -> Environment: ...
@overload
def current_environment(kind: type[World]) -> World: ...
def current_environment(kind: type[Any] | None = None) -> Any:
    """Return the world of the calling particle, for tools and nodes of an agent that runs under `amc`.

    Args:
        kind: class of your `Forkable`, which is then returned itself. Without `kind`, the result is an `Environment`
            whose `step` records rewards and ends.

    Raises:
        EnvironmentStateError: outside of particles and of `use_environment`, or the world has another class.
    """
    environment = particle_context().world
    if environment is None:
        raise EnvironmentStateError(
            "current_environment() was called without a world: run the agent through "
            "amc(..., environment=...), or within `with use_environment(world):`"
        )
    if kind is not None and not isinstance(environment, kind):
        raise EnvironmentStateError(
            f"current_environment({kind.__name__}): the world is a {type(environment).__name__}. Call "
            "current_environment().step(...) for a world with reset and step: it records the rewards"
        )
    return environment


@contextmanager
def use_environment(environment: Environment | Forkable) -> Iterator[None]:
    """Run an agent outside of `amc` in this world."""
    with changed_context(world=environment):
        yield


def current_world() -> Any:
    """Return the user's object of the current world; None: there is no world."""
    world = particle_context().world
    return world.inner if isinstance(world, RecordingWorld) else world


class StartedWorld(NamedTuple):
    """What `environment=` may return: a world in the middle of its episode, which is not reset."""

    world: Forkable
    task: Task | None


class Worlds:
    """The worlds of a run, from the start of their creation until they are closed."""

    def __init__(self) -> None:
        self.close_errors: list[BaseException] = []
        """Errors of worlds that could not be closed."""
        self.first: RecordingWorld | None = None
        """The first world, open or closed."""
        self._open: dict[RecordingWorld, None] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._named_tasks: list[tuple[str, str] | None] = []

    @property
    def any_open(self) -> bool:
        """True if a world is open or being created."""
        return bool(self._open or self._tasks)

    def add(self, inner: Forkable, *, started: bool = False) -> RecordingWorld:
        """Register a world, which `close_all` then closes."""
        world = RecordingWorld(inner, self)
        world.started = started
        self.first = self.first or world
        self._open[world] = None
        return world

    def require_same(self, task: Task | None) -> None:
        """Check that all worlds of the run have the same task. Raises `AgentContractError`."""
        named = None if task is None else (task.id, task.instruction)
        self._named_tasks.append(named)
        if named != self._named_tasks[0]:
            raise AgentContractError(
                f"environment= returned the task {quoted(named, 100)} after {quoted(self._named_tasks[0], 100)} in the "
                "same run, and particles of different tasks cannot be compared: choose the task by the state that "
                "environment= is called with, not at random"
            )

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Finish creating or closing a world even if the caller is cancelled, so that it can be closed."""
        return await asyncio.shield(self._begin(work))

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self, world: RecordingWorld) -> None:
        """Close a world if it is open, or, without waiting, after the calls that use it; a failure is recorded."""
        if world in self._open:
            in_use, closing = bool(world.users()), self._begin(self._close(world))
            if not in_use:
                await asyncio.shield(closing)

    async def close_all(self, *, but: RecordingWorld | None = None) -> None:
        """Close all worlds but one, also those that are still being created."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=CLOSING_LIMIT_S)
            for task in late:
                task.cancel()
                log(
                    _log,
                    logging.WARNING,
                    "world.late",
                    "a world was neither created nor closed within %(seconds)g s after its run ended",
                    seconds=CLOSING_LIMIT_S,
                )
        closed = [world for world in self._open if world is not but]
        if closed:
            await self.finish(self._close_side_by_side(closed))

    async def keep(self, world: RecordingWorld) -> KeptWorld:
        """Close all other worlds, and hand this world over to the caller of the run."""
        await self.close_all(but=world)
        own = Worlds()
        if world in self._open:
            del self._open[world]
            own._open[world] = None
        return KeptWorld(world.inner, partial(own.close, world))

    async def _close_side_by_side(self, worlds: Sequence[RecordingWorld]) -> None:
        await asyncio.gather(*(self._close(world) for world in worlds))

    async def _close(self, world: RecordingWorld) -> None:
        del self._open[world]
        if any(other.inner is world.inner for other in self._open):
            return  # A fork that shares its parent's state.
        if users := world.users():
            await asyncio.wait(map(asyncio.wrap_future, users), timeout=UNUSED_LIMIT_S)
        limit = asyncio.timeout(CLOSING_LIMIT_S)
        try:
            async with limit:
                await world.inner.close()
        except (Exception, asyncio.CancelledError) as caught:
            if isinstance(caught, asyncio.CancelledError) and was_cancelled():
                raise
            error = TimeoutError(f"no answer within {CLOSING_LIMIT_S:g} s") if limit.expired() else caught
            self.close_errors.append(error)
            log(
                _log,
                logging.WARNING,
                "world.not_closed",
                "a world could not be closed: %(error)s: %(text)s",
                error=type(error).__name__,
                text=error,
            )


class RecordingWorld:
    """A particle's world: forwards all calls, and records rewards and ends.

    Around a `Forkable`, it never ends and has no rewards.
    """

    def __init__(self, inner: Forkable, worlds: Worlds) -> None:
        self.inner = inner
        self._environment = inner if isinstance(inner, Environment) else None
        self.ended = False
        self.truncated = False
        """True if the episode ended by the world's own limit."""
        self.past: list[int | tuple[str, TimeStep]] = []
        """The seeds of its forks and its actions with their answers, from the reset on, if it is an `Environment`."""
        self.snapshot: Any = None
        """The last saved state, if it is `Restorable`."""
        self.first: TimeStep | None = None
        """The answer to its reset."""
        self.users: Callable[[], Sequence[Future[None]]] = tuple
        """Returns the calls of tools that use it now: a thread of a particle may go on after the particle."""
        self.started = False
        """True if it was handed over in the middle of its episode."""
        self.pending_reward = 0.0
        """The reward since the last `take_reward`."""
        self._worlds = worlds

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return self in self._worlds._open

    @property
    def gives_rewards(self) -> bool:
        """True if the world is an `Environment`, which has rewards."""
        return self._environment is not None

    @property
    def shown(self) -> Any:
        """The result of `current_environment`: this recorder around an `Environment`, else the object itself."""
        return self if self.gives_rewards else self.inner

    def take_reward(self) -> float:
        """Return the reward since the last call."""
        reward, self.pending_reward = self.pending_reward, 0.0
        return reward

    async def reset(self, task: Task) -> TimeStep:
        """Refuse: the run chooses the task of the world."""
        raise EnvironmentStateError("an agent under amc() may not reset its world: amc resets it at the start")

    async def step(self, action: str) -> TimeStep:
        """Execute an action, and record its reward and whether the episode ended."""
        assert self._environment is not None, "tools get a Forkable itself"
        answer = await traced_step(self._environment.step, action)
        try:
            reward = real_number(answer.reward)
        except ValueError as error:
            raise WorldError(f"the world gave as reward {error} for the action {quoted(action)}") from error
        if not math.isfinite(reward):
            raise WorldError(
                f"the world gave the reward {reward} for the action {quoted(action)}: expected a finite number"
            )
        self.past.append((action, answer))
        self.pending_reward += reward
        self.ended = self.ended or answer.done
        self.truncated = self.truncated or answer.truncated
        return answer

    async def fork(self, seed: int) -> RecordingWorld:
        """Fork the world: the same past, a future with another seed."""
        return await self._worlds.finish(self._fork(seed))

    async def close(self) -> None:
        """Close the world."""
        await self._worlds.close(self)

    async def _fork(self, seed: int) -> RecordingWorld:
        copy = self._worlds.add(await self.inner.fork(seed))
        copy.ended, copy.truncated, copy.pending_reward = self.ended, self.truncated, self.pending_reward
        copy.first, copy.past = self.first, [*self.past, seed]
        return copy


async def make_worlds(
    make: Callable[[], Any],
    n_particles: int,
    rng: np.random.Generator,
    worlds: Worlds,
    begin: Callable[[Forkable], Awaitable[None]] | None = None,
) -> tuple[list[RecordingWorld], Task | None]:
    """Create a started world per particle: the first is reset, the others are forks of it with their own seeds.

    A `Forkable` is not reset, and may come without a task. A world that cannot be forked is created and reset N times
    instead, which is enough for a run that never resamples.

    Args:
        make: creates a world, or a world and a task.
        n_particles: number of worlds.
        rng: draws the seeds of forks.
        worlds: closes the worlds at the end of the run.
        begin: called with each world that `make` created, before its forks.
    """
    first, task = await start_world(make, worlds, begin)
    started = [first]
    for _ in range(n_particles - 1):
        try:
            started.append(await first.fork(int(rng.integers(2**63))))
        except ForkError:
            another, task = await start_world(make, worlds, begin)
            started.append(another)
    return started, task


async def start_world(
    make: Callable[[], Any], worlds: Worlds, begin: Callable[[Forkable], Awaitable[None]] | None = None
) -> tuple[RecordingWorld, Task | None]:
    """Create a world, and reset it if it is an `Environment`."""
    world, task = await make_world(make, worlds)
    if begin is not None:
        await begin(world.inner)
    if isinstance(world.inner, Environment) and not world.started:
        assert task is not None
        world.first = await world.inner.reset(task)
    return world, task


async def make_world(make: Callable[[], Any], worlds: Worlds) -> tuple[RecordingWorld, Task | None]:
    """Create a world, and do not start it."""
    return await worlds.finish(_make_world(make, worlds))


async def _make_world(make: Callable[[], Any], worlds: Worlds) -> tuple[RecordingWorld, Task | None]:
    made = make()
    if inspect.isawaitable(made):
        made = await made
    match made:
        case StartedWorld(inner, task):
            world = worlds.add(inner, started=True)
        case (Forkable() as inner, Task() as task):
            world = worlds.add(inner)
        case Forkable() if not isinstance(made, Environment):
            world, task = worlds.add(made), None
        case _:
            raise AgentContractError(
                f"environment= returned {quoted(made, 100)}; expected (world, Task(...)), the world with reset, step, "
                "fork and close; or, to only separate particles, an object with fork(seed) and close(), alone or with "
                "a Task"
            )
    worlds.require_same(task)
    return world, task


_left: WeakSet[KeptWorld] = WeakSet()
"""The kept worlds that nobody has closed."""


class KeptWorld:
    """A world that outlives its run.

    A world that its caller drops without closing is closed in the background when it is garbage-collected, or at the
    end of the process. Must be created on the event loop of the run, on which the world is closed if the loop still
    runs.

    Args:
        world: the user's own object.
        close: closes it.
    """

    def __init__(self, world: Any, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self.object = world
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._process_id = os.getpid()
        self._closed = False
        _left.add(self)
        with suppress(AttributeError, TypeError):
            # Whoever holds the world alone, as in `graph.run(...).best_world.apply()`, keeps it open too.
            object.__setattr__(world, "_amc_kept", self)

    async def aclose(self) -> None:
        """Close the world; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if self._loop.is_running() and self._loop is not asyncio.get_running_loop():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), self._loop))
        else:
            await self._close()

    def close(self) -> None:
        """Close the world and wait for it; safe to call twice.

        Raises:
            ConfigurationError: called on the event loop of the run, which would wait for itself.
        """
        if self._closed:
            return
        if _running_loop() is self._loop:
            raise ConfigurationError(
                "run.close() was called on the event loop of the run, which would wait for itself: use "
                "`await run.aclose()`, or `async with await graph.arun(...) as run:`"
            )
        run_in_background(self.aclose(), n_workers=1)

    def __del__(self) -> None:
        """Close a dropped world without waiting for it."""
        if not getattr(self, "_closed", True) and self._process_id == os.getpid():
            start_in_background(self.aclose())

    def __reduce__(self) -> tuple[Any, ...]:
        """Become None in a copied or pickled run."""
        return type(None), ()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@atexit.register
def close_left() -> None:
    """Close the worlds that nobody has closed."""
    for kept in [*_left]:
        if kept._process_id == os.getpid() and not on_background_loop():
            with suppress(Exception):
                kept.close()
