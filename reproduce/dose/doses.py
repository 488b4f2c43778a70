"""The worlds, critics, settings and tasks of the experiment."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

from amc_agents.bench import crafting
from amc_agents.envs.registry import WorldSpec, world
from amc_agents.types import Task
from reproduce.dose.noise import KEPT, Level

HARD, STOCK, BLIND, BOTH = "crafting", "crafting-stock", "crafting-hidden", "crafting-stock-hidden"
OTHER, THIRD = "crafting-1", "crafting-2"
"""The world of crafting, with the study's other policy, and with one from a third seed."""
TRAINED_ON = {f"{name}-1": name for name in (STOCK, BOTH, BLIND)}
"""The other worlds with that policy, trained on as the shipped one was -> the world."""
WORLDS = (BOTH, HARD, STOCK, BLIND, OTHER, *TRAINED_ON, THIRD)
PLAIN = (HARD, OTHER, THIRD)
"""Neither finite stock nor hidden success."""
MODELS_HOME = "reproduce/dose/models"
POLICIES = {
    OTHER: "reproduce/study/models/1",
    THIRD: "reproduce/study/models/2",
    **dict.fromkeys(TRAINED_ON, f"{MODELS_HOME}/1"),
}
"""Policies that are not shipped."""
HIDDEN = {name for name in WORLDS if "hidden" in name}
N = 15
POOL = 20
"""Tries per task and temperature, which are subsampled for Best-of-M."""
TRIES = dict.fromkeys((OTHER, *TRAINED_ON, THIRD), 30)
"""The same where it is not POOL."""
LEVELS = (
    Level(0.0),
    *(Level(sigma) for sigma in (0.05, 0.1, 0.2, 0.4, 1.0, math.inf)),
    *(Level(sigma, KEPT) for sigma in (0.1, 0.3, 1.0, math.inf)),
)
LEARNED, SHUFFLED, ROLLOUTS = "learned", "shuffled", "rollouts"
MODELS = {
    **{(name, LEARNED): "embedded:workshop" for name in (BOTH, STOCK, BLIND)},
    (HARD, LEARNED): "embedded:crafting?adapter=reproduce/study/models/0/0/value-tuned",
    (HARD, "learned-1"): "embedded:crafting?adapter=reproduce/study/models/0/1/value-tuned",
    (HARD, "learned-2"): "embedded:crafting?adapter=reproduce/study/models/0/2/value-tuned",
    (OTHER, LEARNED): "embedded:reproduce/study/models/1?adapter=reproduce/study/models/1/0/value-tuned",
    (THIRD, LEARNED): "embedded:reproduce/study/models/2?adapter=reproduce/study/models/2/0/value-tuned",
    **{(name, LEARNED): f"embedded:{MODELS_HOME}/1?adapter={MODELS_HOME}/1/value" for name in TRAINED_ON},
    (f"{BOTH}-1", "learned-1"): f"embedded:{MODELS_HOME}/1?adapter={MODELS_HOME}/1/value-1",
    (HARD, SHUFFLED): "embedded:crafting?adapter=reproduce/study/models/0/0/value-tuned-shuffled",
}
GROUPS = {"tune": ("train", 320_000), "test": ("test", 300)}
"""Split and number of the first task. No model was trained on any of them, and no other experiment played them."""
HARD_TEST = 1_000
"""The first test task in crafting; the study played the tasks before."""


@dataclass(frozen=True)
class Setting:
    """A setting of AMC."""

    temperatures: tuple[float, ...]
    every: int
    """Resampling after every so many steps."""
    beta: float

    @property
    def points(self) -> tuple[int, ...]:
        """Steps after which to resample."""
        return tuple(range(self.every, 20, self.every))

    @property
    def name(self) -> str:
        """Names the setting."""
        return f"T{'+'.join(f'{each:g}' for each in self.temperatures)}_every{self.every}_beta{self.beta:g}"


TEMPERATURES = (0.5, 0.7, 0.9, 1.1)
GRID = tuple(Setting((heat,), every, beta) for heat, every, beta in product(TEMPERATURES, (1, 3), (0.02, 0.07, 0.25)))
ROUNDS = {
    **dict.fromkeys((BOTH, STOCK, BLIND, OTHER), ((6, 8), (14, 3), (32, 1))),
    HARD: ((8, 8), (24, 3), (64, 1)),
    **dict.fromkeys((*TRAINED_ON, THIRD), ((18, 8), (42, 3), (96, 1))),
}
"""Number of training tasks of each round of successive halving, and how many settings survive it."""
PROPOSALS = Setting((0.5, 0.7, 0.9), 2, 0.2)
"""Several proposals, as docs/results/beyond has them."""


def world_of(name: str) -> WorldSpec:
    """Return the environment."""
    return world(HARD if name in PLAIN else TRAINED_ON.get(name, name))


def tasks_of(name: str, group: str, n_tasks: int) -> list[Task]:
    """Return the first tasks of a group, of the hardest band in crafting."""
    split, first = GROUPS[group]
    if name in PLAIN:
        return list(crafting.tasks(n_tasks, crafting.BAND, split=split, first=HARD_TEST if group == "test" else first))
    return list(world_of(name).tasks(n_tasks, split, first))
