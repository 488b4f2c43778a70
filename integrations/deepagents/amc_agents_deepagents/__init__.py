"""Deep agents as particles of amc-agents: files, shell and sub-agents in a folder per particle."""

from amc_agents_deepagents.backend import ARTIFACTS, TOOLS, ForkingBackend, ForkingShellBackend, RecordDiff

__all__ = ["ARTIFACTS", "TOOLS", "ForkingBackend", "ForkingShellBackend", "RecordDiff"]
