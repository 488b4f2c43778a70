"""The middlewares for `create_agent`, also at the door of `amc_agents`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.lac.middleware import ActorCritic
    from amc_agents.pnlc.middleware import CritiqueRefine
    from amc_agents.psrl.ids_middleware import InformationDirected
    from amc_agents.psrl.psrl_middleware import PosteriorSampling

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
        "InformationDirected": "psrl.ids_middleware",
        "PosteriorSampling": "psrl.psrl_middleware",
    },
)
