"""Baselines of LLM-PSRL: agents that learn between episodes without a posterior (its section 5.2)."""

from amc_agents_exploration.baselines.in_context import InContextRl
from amc_agents_exploration.baselines.policy_iteration import InContextPolicyIteration
from amc_agents_exploration.baselines.reflexion import Reflexion

__all__ = ["InContextPolicyIteration", "InContextRl", "Reflexion"]
