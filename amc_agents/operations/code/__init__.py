"""Any coding agent that is a command: N copies of a repository, an agent in each, the best change comes back.

`amc code` is the command; `race` and `apply_winner` are the same from Python.
"""

from amc_agents.operations.code.checking import Check
from amc_agents.operations.code.copies import Repository
from amc_agents.operations.code.racing import CodeSettings, apply_winner, race
from amc_agents.operations.code.run_state import CodeRun, CopyResult

__all__ = ["Check", "CodeRun", "CodeSettings", "CopyResult", "Repository", "apply_winner", "race"]
