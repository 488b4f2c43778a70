"""What code reads of the particle that runs it: its world, random stream, door, meter and budgets.

All of it is one frozen value in one context variable, which tasks and threads inherit. A run fills it for each of its
particles; a program that runs an agent alone fills single fields of it for a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class ParticleContext:
    """The surroundings of a particle's code.

    Each field belongs to the module that its docstring names, which knows its type and has the functions to read it.
    """

    world: Any = None
    """What `current_environment` returns (`runtime.world`)."""
    rng: np.random.Generator | None = None
    """The random stream from which model calls draw their seeds (`models.seeding`)."""
    door: Any = None
    """What holds the particle at its commit tools; None: no particle runs this code (`runtime.door`)."""
    attempt: Any = None
    """The start or resumption of the agent to which this code belongs (`runtime.door`)."""
    visit: Any = None
    """The innermost call at the door around this code (`runtime.door`)."""
    commit: Any = None
    """The commit call that runs this code (`commits`)."""
    meter: Any = None
    """Counts what critics and other roles record (`usage`)."""
    spenders: tuple[Any, ...] = ()
    """The budgets that requests are reserved under, the outermost first (`spending`)."""
    gate: Any = None
    """Holds requests back after a rate limit (`concurrency.gather`)."""
    max_concurrency: int | None = None
    """Limit for work side by side; None: no limit (`concurrency.gather`)."""
    observer: Any = None
    """Receives the events of requests and tool calls, for traces (`runtime.metering`)."""


_current: ContextVar[ParticleContext] = ContextVar("amc_particle", default=ParticleContext())  # noqa: B039 (frozen)


def particle_context() -> ParticleContext:
    """Return the context of the calling code; outside of particles and blocks, every field has its default."""
    return _current.get()


def change_context(**fields: Any) -> None:
    """Set fields for the rest of this context."""
    _current.set(replace(_current.get(), **fields))


@contextmanager
def changed_context(**fields: Any) -> Iterator[None]:
    """Set fields inside the block, and restore these fields after it."""
    before = _current.get()
    change_context(**fields)
    try:
        yield
    finally:
        change_context(**{name: getattr(before, name) for name in fields})
