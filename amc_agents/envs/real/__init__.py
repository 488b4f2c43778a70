"""Worlds of real state, one per particle: a folder, an SQLite database, a process, or several of them together."""

from amc_agents.envs.real.bundle import WorldBundle
from amc_agents.envs.real.changes import Conflict, FileChange, RowChange
from amc_agents.envs.real.directory import DirectoryFork
from amc_agents.envs.real.process import ProcessFork
from amc_agents.envs.real.process_world import ProcessWorld
from amc_agents.envs.real.snapshots import remove_snapshots
from amc_agents.envs.real.sqlite import SqliteFork

__all__ = [
    "Conflict",
    "DirectoryFork",
    "FileChange",
    "ProcessFork",
    "ProcessWorld",
    "RowChange",
    "SqliteFork",
    "WorldBundle",
    "remove_snapshots",
]
