"""LANGCHAIN: one AgentMiddleware per decision, thin; the decision itself is in `methods`.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amc_agents.middleware.actor_critic import ActorCritic
    from amc_agents.middleware.critique_refine import CritiqueRefine
    from amc_agents.middleware.information_directed import InformationDirected
    from amc_agents.middleware.posterior_sampling import PosteriorSampling

__all__ = ["ActorCritic", "CritiqueRefine", "InformationDirected", "PosteriorSampling"]

_HOME = {
    "ActorCritic": "actor_critic",
    "CritiqueRefine": "critique_refine",
    "InformationDirected": "information_directed",
    "PosteriorSampling": "posterior_sampling",
}
"""Where each name lives."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'amc_agents.middleware' has no attribute {name!r}")
    value = getattr(import_module(f"amc_agents.middleware.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
