"""Worlds by name: the library's own, and those that installed packages offer.

A package offers one by an entry point of the group "amc_agents.worlds" that names a `FoundWorld`. Nothing is imported
before a world is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from amc_agents.errors import ConfigurationError
from amc_agents.types import Environment, Task

GROUP = "amc_agents.worlds"
"""Entry-point group in which other packages offer worlds; each names a `FoundWorld`."""
WORDS_VARIABLE = "AMC_WORDS"
"""Environment variable that names Wordle's word list, one word a line; unset: the small list of the library."""

TEXTCRAFT_VARIABLE = "AMC_TEXTCRAFT"
"""Environment variable that names the folder of the official TextCraft's recipes and tables."""


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
    n_episodes: int = 1
    """Episodes of one hidden instance that an agent may learn from (K); 1: every task stands alone."""
    success: float = 1.0
    """Least return that counts as a success."""
    oracle: str | None = None
    """A critic that knows the world, as `module:object`: an upper bound for comparisons; None: there is none."""
    actions: tuple[str, ...] | None = None
    """All that can be done at any step; None: no list could hold it."""


def world(name: str) -> FoundWorld:
    """The world of that name.

    Raises:
        ConfigurationError: no such world; the message lists those that there are.
    """
    if name in _OWN:
        return _OWN[name]()
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
    return sorted({*_OWN, *_offered()})


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


def _textcraft_renamed() -> FoundWorld:
    from amc_agents.envs.crafting.renamed import renamed_tasks

    path = os.environ.get(TEXTCRAFT_VARIABLE)
    if not path:
        raise ConfigurationError(
            f"the world textcraft-renamed plays the official recipes: {TEXTCRAFT_VARIABLE} has to name their folder"
        )
    return replace(_crafting(), tasks=partial(renamed_tasks, path))


def _bandit() -> FoundWorld:
    from amc_agents.envs.exploration import bandit_task

    return _exploration(bandit_task, horizon=1, n_episodes=100)


def _informative_bandit() -> FoundWorld:
    from amc_agents.envs.exploration import informative_bandit_task

    return _exploration(informative_bandit_task, horizon=1, n_episodes=10)


def _combination_lock() -> FoundWorld:
    from amc_agents.envs.exploration import lock_task

    return _exploration(lock_task, horizon=3, n_episodes=8)


def _wordle() -> FoundWorld:
    from amc_agents.envs.exploration import load_words, wordle_task

    path = os.environ.get(WORDS_VARIABLE)
    words = load_words(path) if path else None
    return _exploration(partial(wordle_task, words=words), horizon=5, n_episodes=6)


def _riverswim() -> FoundWorld:
    from amc_agents.envs.exploration import riverswim_task

    return _exploration(riverswim_task, horizon=6, n_episodes=35)


def _riverswim_4() -> FoundWorld:
    from amc_agents.envs.exploration import riverswim_task

    return _exploration(partial(riverswim_task, n_caves=4, horizon=20), horizon=20, n_episodes=35)


def _exploration(task: Callable[[int, str], Task], *, horizon: int, n_episodes: int) -> FoundWorld:
    # Splits are separate seed streams: worlds as small as a lock of 720 codes may hide the same one in both.
    from amc_agents.envs.exploration import ExplorationWorld

    return FoundWorld(
        make=ExplorationWorld,
        tasks=lambda n_tasks, split, first: (task(seed, split) for seed in range(first, first + n_tasks)),
        horizon=horizon,
        n_episodes=n_episodes,
    )


_OWN: dict[str, Callable[[], FoundWorld]] = {
    "bandit": _bandit,
    "combination-lock": _combination_lock,
    "crafting": _crafting,
    "informative-bandit": _informative_bandit,
    "riverswim": _riverswim,
    "riverswim-4": _riverswim_4,
    "textcraft-renamed": _textcraft_renamed,
    "wordle": _wordle,
}
