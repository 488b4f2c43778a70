"""The checked arguments of `amc`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from amc_agents.population.particle import State, TrajectoryFunction
from amc_agents.population.rewards import RewardFunction
from amc_agents.population.settings import Settings
from amc_agents.prices import Rates
from amc_agents.runtime import contract
from amc_agents.runtime.chosen_critic import CriticChoice

EnvironmentFunction = Callable[[State], Any]
"""Creates (Environment, Task) or a `Forkable` from the agent's input; may be async."""


@dataclass(frozen=True)
class WrappedAgent:
    """The checked arguments of `amc`."""

    agent: contract.Agent
    settings: Settings
    critics: CriticChoice
    step_after: tuple[str, ...]
    """Nodes after which the agent pauses."""
    environment: EnvironmentFunction | None
    reward: RewardFunction | None
    rewards_named: bool
    """Whether `rewards=` was given."""
    trajectory: TrajectoryFunction | None
    effects: contract.Effects
    prices: Mapping[str, Rates] = field(default_factory=dict)
    """Prices of the configuration file."""
