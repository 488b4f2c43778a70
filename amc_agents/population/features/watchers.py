"""Let a program see the runs that begin and end in a block: `amc run --watch`, or the measurements of a shadow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Protocol

from amc_agents.population.feature import Feature
from amc_agents.population.particle import Particle
from amc_agents.population.system import ParticleSystem
from amc_agents.run import Run


class Watcher(Protocol):
    """Is told of the runs that begin and end; it may read a population at any time in between, from any thread."""

    def begin(self, name: str, system: ParticleSystem) -> None:
        """Look at a run from now on."""
        ...

    def end(self, system: ParticleSystem) -> None:
        """The run has ended, or was closed."""
        ...


@dataclass(frozen=True, slots=True)
class _Audience:
    """Who is interested in the runs of a context."""

    watcher: Watcher | None = None
    name: str = "run"
    """The name of the runs for the watcher."""
    listener: Callable[[Run], None] | None = None


_audience: ContextVar[_Audience] = ContextVar("amc_audience", default=_Audience())  # noqa: B039 (frozen)


@contextmanager
def _audience_with(**fields: Any) -> Iterator[None]:
    token = _audience.set(replace(_audience.get(), **fields))
    try:
        yield
    finally:
        _audience.reset(token)


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """Show a watcher each run that begins inside the block, however the graph is called; None: nobody watches."""
    with _audience_with(watcher=watcher):
        yield


@contextmanager
def watched_as(name: str) -> Iterator[None]:
    """Name the runs that begin inside the block."""
    with _audience_with(name=name):
        yield


@contextmanager
def listening(listener: Callable[[Run], None]) -> Iterator[None]:
    """Call a function with the result of each run that ends inside the block, however the graph is called."""
    with _audience_with(listener=listener):
        yield


def ignore_runs() -> None:
    """Call no listener for the rest of this context."""
    _audience.set(replace(_audience.get(), listener=None))


class Watched(Feature):
    """Tells the watcher and the listener of a context about a run."""

    def __init__(self) -> None:
        self._audience = _audience.get()
        self._system: ParticleSystem | None = None

    async def on_start(self, system: ParticleSystem) -> None:
        """Tell the watcher that the run begins."""
        self._system = system
        if self._audience.watcher is not None:
            self._audience.watcher.begin(self._audience.name, system)

    def on_result(self, run: Run, winner: Particle) -> None:
        """Pass the run to the listener."""
        self.on_close()
        if self._audience.listener is not None:
            self._audience.listener(run)

    def on_close(self) -> None:
        """Tell the watcher that the run has ended."""
        system, self._system = self._system, None
        if self._audience.watcher is not None and system is not None:
            self._audience.watcher.end(system)


def is_watched() -> bool:
    """Whether anybody is interested in the runs of this context."""
    return _audience.get() != _Audience()
