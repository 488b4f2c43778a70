"""Environments, and wrappers that fork worlds that have no `fork`.

| file or package | content |
|---|---|
| `replay` | `ReplayFork`, `CopyFork`, `NoFork`: wrappers of worlds that have no `fork` |
| `real` | `DirectoryFork`, `SqliteFork`, `ProcessFork`, `ProcessWorld`, `WorldBundle`: copies of real state |
| `crafting` | the TextCraft-compatible world |
| `workshop` | crafting with finite stock, hidden success, or both |
| `registry` | worlds by name, including those of installed packages |
"""

from amc_agents.envs.real import DirectoryFork, ProcessFork, ProcessWorld, SqliteFork, WorldBundle, remove_snapshots
from amc_agents.envs.replay import CopyFork, NoFork, ReplayFork, Reseedable, World

__all__ = [
    "CopyFork",
    "DirectoryFork",
    "NoFork",
    "ProcessFork",
    "ProcessWorld",
    "ReplayFork",
    "Reseedable",
    "SqliteFork",
    "World",
    "WorldBundle",
    "remove_snapshots",
]
