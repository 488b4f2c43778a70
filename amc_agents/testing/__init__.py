"""Contract checks and fakes for testing worlds, critics and agents. The library itself does not import them."""

from __future__ import annotations

from amc_agents.testing.checks import check_critic, check_environment, check_restorable
from amc_agents.testing.enumerable import EnumerableWorld, run_smc
from amc_agents.testing.exact_roles import exact_roles_model
from amc_agents.testing.scripted import ExpertWorld, ScriptedChatModel, noisy_expert

__all__ = [
    "EnumerableWorld",
    "ExpertWorld",
    "ScriptedChatModel",
    "check_critic",
    "check_environment",
    "check_restorable",
    "exact_roles_model",
    "noisy_expert",
    "run_smc",
]
