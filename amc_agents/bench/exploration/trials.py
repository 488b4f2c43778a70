"""One trial of exploration: an agent plays K episodes of one hidden instance, and what is kept of it."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from amc_agents.bench.exploration.agents import Explorer
from amc_agents.envs.exploration import Instance, episodes
from amc_agents.envs.registry import WorldSpec
from amc_agents.psrl.episodes import play_episode
from amc_agents.types import Step, Task
from amc_agents.usage import Usage, counting, total

LOST = -1
"""Stands for an action that is none of the world's."""


@dataclass(frozen=True)
class Trial:
    """The raw result of one trial: one line of a results folder. `K` episodes."""

    agent: str
    """The explorer's name."""
    task: str
    """Id of the hidden instance's task."""
    seed: int
    """The exploration's seed; the trial's own is derived from it and the task, for every agent the same."""
    regrets: tuple[float, ...]
    """`[K]` by episode, as `Instance.regret` has it."""
    returns: tuple[float, ...]
    """`[K]` undiscounted, by episode."""
    choices: tuple[tuple[int, ...], ...]
    """`[K]` episodes of `[steps]` numbers of actions, in the instance's order; `LOST` for any other action."""
    n_actions: int
    """Actions that the instance has."""
    usage: Usage
    """Of all language models."""
    seconds: float
    """Wall-clock time; trials that run at the same time share it."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is the result of."""
        return self.agent, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Trial:
        """The inverse of `to_json`. Raises `KeyError` or `TypeError` where `values` is not a trial."""
        parts = {
            "regrets": tuple(values["regrets"]),
            "returns": tuple(values["returns"]),
            "choices": tuple(tuple(episode) for episode in values["choices"]),
            "usage": Usage(**values["usage"]),
        }
        return cls(**{**values, **parts})


async def play_trial(found: WorldSpec, task: Task, explorer: Explorer, seed: int, n_episodes: int) -> Trial:
    """One trial. All agents meet the same instance with the same luck of the world."""
    instance: Instance = task.payload
    words = [seed, zlib.crc32(task.id.encode())]
    rng = np.random.default_rng(words)
    own_seed = int(np.random.SeedSequence([*words, 1]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    begun = time.perf_counter()
    agent = explorer.make(task, own_seed, n_episodes=n_episodes, horizon=found.horizon)
    world = found.make()
    try:
        with counting() as meter:
            played = [
                await play_episode(world, episode, agent, rng, horizon=found.horizon)
                for episode in episodes(task, n_episodes)
            ]
    finally:
        await world.close()
    return Trial(
        agent=explorer.name,
        task=task.id,
        seed=seed,
        regrets=tuple(float(instance.regret(trajectory)) for trajectory in played),
        returns=tuple(trajectory.return_ for trajectory in played),
        choices=tuple(tuple(_number(step, instance) for step in trajectory.steps) for trajectory in played),
        n_actions=len(instance.actions),
        usage=total(meter.read()),
        seconds=time.perf_counter() - begun,
    )


def _number(step: Step, instance: Instance) -> int:
    """Which action a step took; worlds differ in whether a name in other letters (`a` for `A`) counts, here it does."""
    names = [action.casefold() for action in instance.actions]
    named = step.action.strip().casefold()
    return names.index(named) if named in names else LOST
