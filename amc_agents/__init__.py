"""amc-agents: what reinforcement learning would have given an agent, at test time, for models that cannot be trained.

Names are imported when they are first used, so that `import amc_agents` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amc_agents.critics.spec import parse_critic
    from amc_agents.errors import AmcError
    from amc_agents.nodes.actor_critic import actor_critic_model, actor_critic_node
    from amc_agents.nodes.amc import AmcGraph, amc
    from amc_agents.nodes.critique_refine import critique_refine_model, critique_refine_node
    from amc_agents.nodes.effects import effect
    from amc_agents.nodes.text_agent import text_agent
    from amc_agents.nodes.world import current_environment, use_environment
    from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
    from amc_agents.types import Critic, Environment, Forkable, Population, Run, Step, Task, TimeStep, Trajectory
    from amc_agents.usage import Usage

__version__ = "0.1.0"

__all__ = [
    "AmcError",
    "AmcGraph",
    "AtSteps",
    "Critic",
    "Environment",
    "EssBelow",
    "EveryStep",
    "Forkable",
    "Never",
    "Population",
    "Run",
    "Step",
    "Task",
    "TimeStep",
    "Trajectory",
    "Usage",
    "actor_critic_model",
    "actor_critic_node",
    "amc",
    "critique_refine_model",
    "critique_refine_node",
    "current_environment",
    "effect",
    "parse_critic",
    "text_agent",
    "use_environment",
]

_HOME = {
    "AmcError": "errors",
    "AmcGraph": "nodes.amc",
    "AtSteps": "smc",
    "Critic": "types",
    "Environment": "types",
    "EssBelow": "smc",
    "EveryStep": "smc",
    "Forkable": "types",
    "Never": "smc",
    "Population": "types",
    "Run": "types",
    "Step": "types",
    "Task": "types",
    "TimeStep": "types",
    "Trajectory": "types",
    "Usage": "usage",
    "actor_critic_model": "nodes.actor_critic",
    "actor_critic_node": "nodes.actor_critic",
    "amc": "nodes.amc",
    "critique_refine_model": "nodes.critique_refine",
    "critique_refine_node": "nodes.critique_refine",
    "current_environment": "nodes.world",
    "effect": "nodes.effects",
    "parse_critic": "critics.spec",
    "text_agent": "nodes.text_agent",
    "use_environment": "nodes.world",
}
"""Where each name lives."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'amc_agents' has no attribute {name!r}")
    value = getattr(import_module(f"amc_agents.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return [*__all__, "__version__"]
