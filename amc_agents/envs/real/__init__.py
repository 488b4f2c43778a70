"""Worlds of real state, one per particle: a folder, an SQLite database, a process, or several of them together."""

from amc_agents.envs.real.changes import Conflict, FileChange, RowChange, WorldBundle
from amc_agents.envs.real.directory import DirectoryFork
from amc_agents.envs.real.process import ProcessFork, ProcessWorld
from amc_agents.envs.real.sqlite import SqliteFork
from amc_agents.envs.real.workspace import remove_snapshots

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
