"""The middlewares for `create_agent`, also at the door of `amc_agents`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.lac.middleware import ActorCritic
    from amc_agents.pnlc.middleware import CritiqueRefine
    from amc_agents.psrl.middleware import InformationDirected, PosteriorSampling

__all__ = [
    "ActorCritic",
    "CritiqueRefine",
    "InformationDirected",
    "PosteriorSampling",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "ActorCritic": "lac.middleware",
        "CritiqueRefine": "pnlc.middleware",
        "InformationDirected": "psrl.middleware",
        "PosteriorSampling": "psrl.middleware",
    },
)
