"""Worlds, searches and groups of tasks of the experiment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from amc_agents.bench import crafting
from amc_agents.envs.registry import world
from amc_agents.types import Task

HARD, STOCK, BLIND, BOTH = "crafting", "crafting-stock", "crafting-hidden", "crafting-stock-hidden"
WORLDS = (HARD, STOCK, BLIND, BOTH)
HIDDEN = {BLIND, BOTH}
"""Worlds in which no search sees a reward: the critic judges final states, too."""
CRITICS = {
    HARD: "embedded:crafting?adapter=reproduce/study/models/0/0/value-tuned",
    **dict.fromkeys((STOCK, BLIND, BOTH), "embedded:workshop"),
}
"""In crafting, the value model of the study's first seed, whose pools and AMC are the baselines on test tasks."""
GROUPS = {"screen": ("train", 300_000), "final": ("test", 0), "confirm": ("test", 100)}
"""Split and number of the first task. No model was trained on any of these tasks. The test tasks are those of
docs/results/study and docs/results/worlds, whose pools and plain AMC are the baselines; "confirm" follows them."""


@dataclass(frozen=True)
class Search:
    """A search with its settings. What does not apply to its kind is left at its default."""

    kind: str
    """independent or filtered; ahead and iterated were tried, and are not kept."""
    temperatures: tuple[float, ...]
    """One per proposal, with equal shares."""
    sizes: tuple[int, ...] = (15,)
    """N at the start and after each resampling."""
    points: tuple[int, ...] = ()
    """Steps after which to weigh and resample."""
    beta: float = 0.1
    rho: float | None = None
    """Softens the weights."""
    keep: int | None = None
    """Maximum number of distinct ancestors at a resampling without replacement."""
    calls: int = 15
    """Turns per step of a search that looks ahead."""
    rounds: int = 1
    """Rounds of conditional SMC."""
    pick: str = "weight"
    """The next round's reference: drawn by "weight", or the "best"."""

    @property
    def playable(self) -> bool:
        """Whether the code of the search is still here."""
        plain = self.rho is None and self.keep is None and len(self.sizes) == 1
        return self.kind == "independent" or (self.kind == "filtered" and plain)

    @property
    def name(self) -> str:
        """Names the search by its settings."""
        heat = "+".join(f"{temperature:g}" for temperature in self.temperatures)
        parts = [self.kind, f"T{heat}", "N" + "-".join(map(str, self.sizes))]
        if self.points:
            parts += ["at" + short(self.points), f"beta{self.beta:g}"]
        if self.rho is not None:
            parts.append(f"rho{self.rho:g}")
        if self.keep is not None:
            parts.append(f"keep{self.keep}")
        if self.kind == "ahead":
            parts.append(f"calls{self.calls}")
        if self.kind == "iterated":
            parts.append(f"rounds{self.rounds}-{self.pick}")
        return "_".join(parts)

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        return {name: value for name, value in asdict(self).items() if name != "keep" or value is not None}


def every(n: int, first: int = 0) -> tuple[int, ...]:
    """Every n-th step before the horizon of 20."""
    return tuple(range(first or n, 20, n))


def short(points: Sequence[int]) -> str:
    """Name a schedule: every-2, or its steps."""
    for n in range(1, 10):
        if tuple(points) == every(n):
            return f"every{n}"
    return "-".join(map(str, points))


@lru_cache
def tasks_of(name: str, group: str, n_tasks: int) -> tuple[Task, ...]:
    """Return the first tasks of a group, of the hardest band in crafting."""
    split, first = GROUPS[group]
    if name == HARD:
        return tuple(crafting.tasks(n_tasks, crafting.BAND, split=split, first=first))
    return tuple(world(name).tasks(n_tasks, split, first))
