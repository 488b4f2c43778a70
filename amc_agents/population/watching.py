"""Let a program look at the populations of runs while they are in progress, such as `amc run --watch`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from amc_agents.population.population import ParticleSystem


class Watcher(Protocol):
    """Is told of the runs that begin and end; it may read a population at any time in between, from any thread."""

    def begin(self, name: str, system: ParticleSystem) -> None:
        """Look at a run from now on."""
        ...

    def end(self, system: ParticleSystem) -> None:
        """The run has ended, or was closed."""
        ...


_watcher: ContextVar[Watcher | None] = ContextVar("amc_watcher", default=None)
_name: ContextVar[str] = ContextVar("amc_watched_name", default="run")


@contextmanager
def watching(watcher: Watcher | None) -> Iterator[None]:
    """Show a watcher each run that begins inside the block, however the graph is called; None: nobody watches."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def watched_as(name: str) -> Iterator[None]:
    """Name the runs that begin inside the block."""
    token = _name.set(name)
    try:
        yield
    finally:
        _name.reset(token)


def begin_watching(system: ParticleSystem) -> Watcher | None:
    """Tell the watcher of this context that a run begins, and return it."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.begin(_name.get(), system)
    return watcher
