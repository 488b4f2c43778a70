"""Environments, and wrappers that fork worlds without a `fork` of their own."""

from amc_agents.envs.real import DirectoryFork, ProcessFork, SqliteFork, WorldBundle
from amc_agents.envs.replay import CopyFork, NoFork, ReplayFork, Reseedable, World

__all__ = [
    "CopyFork",
    "DirectoryFork",
    "NoFork",
    "ProcessFork",
    "ReplayFork",
    "Reseedable",
    "SqliteFork",
    "World",
    "WorldBundle",
]
