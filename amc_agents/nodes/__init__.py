"""LangGraph nodes and graphs. `amc` and `text_agent`, named as their modules are, stand at the door of `amc_agents`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amc_agents.nodes.actor_critic import actor_critic_model, actor_critic_node
    from amc_agents.nodes.critique_refine import critique_refine_model, critique_refine_node
    from amc_agents.nodes.exploration import (
        exploring_text_agent,
        information_directed_nodes,
        posterior_sampling_nodes,
    )
    from amc_agents.nodes.posterior import StorePosterior
    from amc_agents.nodes.role_models import RoleModel

__all__ = [
    "RoleModel",
    "StorePosterior",
    "actor_critic_model",
    "actor_critic_node",
    "critique_refine_model",
    "critique_refine_node",
    "exploring_text_agent",
    "information_directed_nodes",
    "posterior_sampling_nodes",
]

_HOME = {
    "RoleModel": "role_models",
    "StorePosterior": "posterior",
    "actor_critic_model": "actor_critic",
    "actor_critic_node": "actor_critic",
    "critique_refine_model": "critique_refine",
    "critique_refine_node": "critique_refine",
    "exploring_text_agent": "exploration",
    "information_directed_nodes": "exploration",
    "posterior_sampling_nodes": "exploration",
}
"""Where each name lives."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'amc_agents.nodes' has no attribute {name!r}")
    value = getattr(import_module(f"amc_agents.nodes.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
