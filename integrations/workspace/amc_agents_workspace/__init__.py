"""A coding world for amc-agents: small repositories with failing tests, in a folder per particle."""

from amc_agents.envs.registry import WorldSpec
from amc_agents_workspace.bugs import DEFECTS, MODULES, Bug, generate_bugs
from amc_agents_workspace.checking import Remembered, Report, run_tests
from amc_agents_workspace.critic import Progress
from amc_agents_workspace.mutations import Mutation, mutations
from amc_agents_workspace.policy import scripted_policy
from amc_agents_workspace.tools import TOOLS
from amc_agents_workspace.world import CodingWorld

CODING = WorldSpec(CodingWorld, generate_bugs, horizon=40)
"""Repair a small repository: the entry point `coding`."""

__all__ = [
    "CODING",
    "DEFECTS",
    "MODULES",
    "TOOLS",
    "Bug",
    "CodingWorld",
    "Mutation",
    "Progress",
    "Remembered",
    "Report",
    "generate_bugs",
    "mutations",
    "run_tests",
    "scripted_policy",
]
