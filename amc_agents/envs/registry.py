"""Registry of worlds by name: the library's own, and those of installed packages.

A package registers a world by an entry point of the group "amc_agents.worlds" that refers to a `WorldSpec`. A world is
imported when it is first looked up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted
from amc_agents.types import Environment, Task

if TYPE_CHECKING:
    from amc_agents.envs.workshop import Kind

GROUP = "amc_agents.worlds"
"""Entry-point group for the worlds of other packages; each entry point refers to a `WorldSpec`."""
TEXTCRAFT_VARIABLE = "AMC_TEXTCRAFT"
"""Environment variable with the folder of the official TextCraft recipes and tables."""


ANY_RULES = """\
You act in a text world. At each turn, answer with one line `Thought: ...` (optional) and one line `Action: ...`, and
write nothing else. The world answers each action. Use only actions that its texts describe."""
"""Rules of a world that has none of its own."""


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """A world, its tasks, and defaults for playing in it."""

    make: Callable[[], Environment]
    """Creates a world."""
    tasks: Callable[[int, str, int], Iterable[Task]]
    """(number of tasks, split, index of the first) -> tasks. The splits "train" and "test" exist and share no task."""
    horizon: int
    """Maximum number of steps in an episode."""
    model: str | None = None
    """A shipped policy for this world, as the argument of `EmbeddedChatModel(model=...)`; None: not shipped."""
    n_episodes: int = 1
    """K, the episodes that an agent plays in the same hidden instance; 1: tasks are independent."""
    success: float = 1.0
    """Smallest return that counts as a success."""
    oracle: str | None = None
    """A critic with access to the world's hidden state, as `module:object`, for upper bounds; None: not available."""
    actions: tuple[str, ...] | None = None
    """The possible actions at every step; None: they cannot be listed."""
    rules: str = ANY_RULES
    """How to act, for a chat model that was not trained for the world: its system message."""
    unseen_from: int = 0
    """Number of the first training task that the shipped models have not seen; `amc tune` begins there."""


def world(name: str) -> WorldSpec:
    """Look up a world by name.

    Raises:
        ConfigurationError: the world does not exist; the message lists the available worlds.
    """
    if name in _OWN:
        return _OWN[name]()
    point = _registered().get(name)
    if point is None:
        raise ConfigurationError(
            f"unknown world {quoted(name)}; available: {', '.join(worlds())}. Other packages register worlds by entry "
            f"points of the group {quoted(GROUP)}"
        )
    spec: Any = point.load()
    if not isinstance(spec, WorldSpec):
        raise ConfigurationError(
            f"world {quoted(name)}: the entry point {quoted(point.value)} refers to a {type(spec).__name__}, expected "
            "a WorldSpec"
        )
    return spec


def worlds() -> list[str]:
    """List the names of all available worlds."""
    return sorted({*_OWN, *_registered()})


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _crafting() -> WorldSpec:
    from amc_agents.envs.crafting import CraftingWorld, generate_tasks
    from amc_agents.envs.crafting.tasks import RULES

    return WorldSpec(
        make=CraftingWorld,
        tasks=lambda n_tasks, split, first: generate_tasks(n_tasks, split, first_seed=first),
        horizon=20,
        model="crafting",
        oracle="amc_agents.bench.planner_critic:PlannerCritic",
        rules=RULES,
        unseen_from=500_000,
    )


def _textcraft_renamed() -> WorldSpec:
    from amc_agents.envs.crafting.official import renamed_tasks

    path = os.environ.get(TEXTCRAFT_VARIABLE)
    if not path:
        raise ConfigurationError(
            f"the world textcraft-renamed needs the official recipes: set {TEXTCRAFT_VARIABLE} to their folder"
        )
    return replace(_crafting(), tasks=partial(renamed_tasks, path), unseen_from=0)


def _workshop(kind: Kind) -> WorldSpec:
    from amc_agents.envs.workshop import WorkshopWorld, generate_tasks
    from amc_agents.envs.workshop.tasks import rules_of

    return WorldSpec(
        make=WorkshopWorld,
        tasks=partial(generate_tasks, kind=kind),
        horizon=20,
        model="workshop",
        oracle="amc_agents.bench.workshop_critic:WorkshopCritic",
        rules=rules_of(kind),
        unseen_from=100_000,
    )


_OWN: dict[str, Callable[[], WorldSpec]] = {
    "crafting": _crafting,
    "crafting-hidden": partial(_workshop, "hidden"),
    "crafting-stock": partial(_workshop, "stock"),
    "crafting-stock-hidden": partial(_workshop, "both"),
    "textcraft-renamed": _textcraft_renamed,
}
