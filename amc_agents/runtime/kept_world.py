"""The winner's world after a run, open until its caller closes it."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from amc_agents.concurrency.background import on_background_loop, run_in_background, start_in_background
from amc_agents.errors import ConfigurationError

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
