"""Gymnasium environments as text worlds for amc-agents."""

from amc_agents_gymnasium.interface import GymnasiumTask, TextInterface, seed_generator
from amc_agents_gymnasium.spec import SPLITS, Fork, gymnasium_world
from amc_agents_gymnasium.world import GymnasiumWorld

__all__ = [
    "SPLITS",
    "Fork",
    "GymnasiumTask",
    "GymnasiumWorld",
    "TextInterface",
    "gymnasium_world",
    "seed_generator",
]
