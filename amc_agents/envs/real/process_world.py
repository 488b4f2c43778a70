"""A text world in a process per particle: global state of the world's code is neither shared nor changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from amc_agents.envs.real.process import ProcessFork
from amc_agents.envs.replay import World
from amc_agents.errors import EnvironmentStateError
from amc_agents.types import Task, TimeStep


class ProcessWorld:
    """An `Environment` whose world lives in a separate process, and whose fork is a copy of that process.

    It isolates worlds that use global state, such as the module `random`, and copies worlds that `copy.deepcopy`
    cannot, such as native simulators. After a fork, the generators of `random` and `numpy.random` are seeded anew in
    the copy, and so is the world if it is `Reseedable`. The process starts at the first reset. Tasks, actions and
    answers are pickled.

    Args:
        make: creates the world in its process: a function or class of an importable module or of the main script.
        timeout: maximum time of a reset or step, in seconds; None: no limit. A process that exceeds it is killed.
    """

    def __init__(self, make: Callable[[], World], *, timeout: float | None = None) -> None:
        self._make, self._timeout = make, timeout
        self._process: ProcessFork[World] | None = None

    async def reset(self, task: Task) -> TimeStep:
        """Start `task`, in a new process if none is running.

        Raises:
            WorldError: `make` failed, or the process died.
        """
        if self._process is None:
            start: Any = partial(ProcessFork, self._make, timeout=self._timeout)
            self._process = await asyncio.to_thread(start)
        return await self._call("reset", task)

    async def step(self, action: str) -> TimeStep:
        """Execute an action. Raises `WorldError` if the process died or exceeded its time limit."""
        return await self._call("step", action)

    async def fork(self, seed: int) -> ProcessWorld:
        """Copy the process; before the first reset, return a world without a process.

        Raises:
            ForkError: the process has more than one thread, which a fork would not copy.
            WorldError: the process died.
        """
        twin = ProcessWorld(self._make, timeout=self._timeout)
        twin._process = None if self._process is None else await self._process.fork(seed)
        return twin

    async def close(self) -> None:
        """End the process; safe to call twice."""
        process, self._process = self._process, None
        if process is not None:
            await process.close()

    async def _call(self, name: str, argument: Task | str) -> TimeStep:
        if self._process is None:
            raise EnvironmentStateError(f"{name} was called before reset or after close: call reset(task) first")
        return cast(TimeStep, await asyncio.to_thread(self._process.call, name, argument))
