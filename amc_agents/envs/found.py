"""Worlds by name: the library's own, and those that installed packages offer.

A package offers one by an entry point of the group "amc_agents.worlds" that names a `FoundWorld`. Nothing is imported
before a world is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from amc_agents.errors import ConfigurationError
from amc_agents.types import Environment, Task

GROUP = "amc_agents.worlds"
"""Entry-point group in which other packages offer worlds; each names a `FoundWorld`."""


@dataclass(frozen=True, slots=True)
class FoundWorld:
    """All that is needed to play in a world."""

    make: Callable[[], Environment]
    """A fresh world."""
    tasks: Callable[[int, str, int], Iterable[Task]]
    """(number of tasks, split, number of the first) -> tasks. Splits share no task; "train" and "test" are there."""
    horizon: int
    """Steps that an episode may have."""
    model: str | None = None
    """A small policy that plays it, as `EmbeddedChatModel(model=...)` takes it; None: there is none."""
    success: float = 1.0
    """Least return that counts as a success."""
    oracle: str | None = None
    """A critic that knows the world, as `module:object`: an upper bound for comparisons; None: there is none."""


def world(name: str) -> FoundWorld:
    """The world of that name.

    Raises:
        ConfigurationError: no such world; the message lists those that there are.
    """
    if name == "crafting":
        return _crafting()
    point = _offered().get(name)
    if point is None:
        raise ConfigurationError(
            f"no world {name!r}; there are: {', '.join(worlds())}. Others come with packages that offer them (entry "
            f"points of the group {GROUP!r})"
        )
    found: Any = point.load()
    if not isinstance(found, FoundWorld):
        raise ConfigurationError(
            f"world {name!r}: the entry point {point.value!r} names a {type(found).__name__}, expected a FoundWorld"
        )
    return found


def worlds() -> list[str]:
    """The names of all worlds that can be asked for."""
    return sorted({"crafting", *_offered()})


def _offered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _crafting() -> FoundWorld:
    from amc_agents.envs.crafting import CraftingWorld, generate_tasks

    return FoundWorld(
        make=CraftingWorld,
        tasks=lambda n_tasks, split, first: generate_tasks(n_tasks, split, first_seed=first),
        horizon=20,
        model="crafting",
        oracle="amc_agents.bench.planner_critic:PlannerCritic",
    )
