"""Environments of aviary as text worlds for amc-agents."""

from amc_agents_aviary.world import AviaryTask, AviaryWorld, aviary_world

__all__ = ["AviaryTask", "AviaryWorld", "aviary_world"]
