"""LAC: candidate actions re-weighted by a critic (paper: LAC)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.lac.decision import decide
    from amc_agents.lac.middleware import ActorCritic
    from amc_agents.lac.node import actor_critic_model, actor_critic_node
    from amc_agents.lac.types import LacSettings

__all__ = [
    "ActorCritic",
    "LacSettings",
    "actor_critic_model",
    "actor_critic_node",
    "decide",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "ActorCritic": "lac.middleware",
        "LacSettings": "lac.types",
        "actor_critic_model": "lac.node",
        "actor_critic_node": "lac.node",
        "decide": "lac.decision",
    },
)
