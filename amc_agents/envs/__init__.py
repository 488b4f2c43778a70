"""Worlds that can be forked, and forks for worlds that cannot."""

from amc_agents.envs.replay import CopyFork, NoFork, ReplayFork, Reseedable, World

__all__ = ["CopyFork", "NoFork", "ReplayFork", "Reseedable", "World"]
