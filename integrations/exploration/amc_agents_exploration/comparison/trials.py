"""One trial of an exploration: an agent plays K episodes of one hidden instance."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from amc_agents.bench.results_folder import ItemKey
from amc_agents.envs.registry import WorldSpec
from amc_agents.types import Step, Task
from amc_agents.usage import Usage, counting, total
from amc_agents_exploration.comparison.agents import Explorer
from amc_agents_exploration.episodic import play_episode
from amc_agents_exploration.worlds import Instance, episodes

LOST = -1
"""Number of an action that the world does not know."""


@dataclass(frozen=True)
class Trial:
    """The raw result of one trial of `K` episodes: one line of a results folder."""

    agent: str
    """Name of the explorer."""
    task: str
    """Id of the hidden instance's task."""
    seed: int
    """Seed of the exploration. The trial's seed is derived from it and the task, so it is the same for every agent."""
    regrets: tuple[float, ...]
    """`[K]` regret of each episode, from `Instance.regret`."""
    returns: tuple[float, ...]
    """`[K]` undiscounted return of each episode."""
    choices: tuple[tuple[int, ...], ...]
    """`[K]` episodes of `[steps]` numbers of actions in the instance's order; `LOST` for other actions."""
    n_actions: int
    """Number of actions of the instance."""
    usage: Usage
    """Usage of all language models."""
    seconds: float
    """Wall time, which concurrent trials share."""

    @property
    def key(self) -> ItemKey:
        """The key of the work item."""
        return self.agent, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Trial:
        """Invert `to_json`. Raises `KeyError` or `TypeError` for other values."""
        parts = {
            "regrets": tuple(values["regrets"]),
            "returns": tuple(values["returns"]),
            "choices": tuple(tuple(episode) for episode in values["choices"]),
            "usage": Usage(**values["usage"]),
        }
        return cls(**{**values, **parts})


async def play_trial(spec: WorldSpec, task: Task, explorer: Explorer, seed: int, n_episodes: int) -> Trial:
    """Play one trial. All agents get the same instance and the same random outcomes of the world."""
    instance: Instance = task.payload
    words = [seed, zlib.crc32(task.id.encode())]
    rng = np.random.default_rng(words)
    agent_seed = int(np.random.SeedSequence([*words, 1]).generate_state(1, np.uint64)[0] >> np.uint64(1))
    started = time.perf_counter()
    agent = explorer.make(task, agent_seed, n_episodes=n_episodes, horizon=spec.horizon)
    world = spec.make()
    try:
        with counting() as meter:
            played = [
                await play_episode(world, episode, agent, rng, horizon=spec.horizon)
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
        seconds=time.perf_counter() - started,
    )


def _number(step: Step, instance: Instance) -> int:
    """Return the number of a step's action. Case is ignored, although some worlds distinguish it."""
    names = [action.casefold() for action in instance.actions]
    name = step.action.strip().casefold()
    return names.index(name) if name in names else LOST
