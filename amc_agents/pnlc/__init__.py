"""PNLC: planning with a natural-language critic (paper: PNLC)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.pnlc.decision import decide
    from amc_agents.pnlc.middleware import CritiqueRefine
    from amc_agents.pnlc.node import critique_refine_model, critique_refine_node
    from amc_agents.pnlc.types import PnlcSettings

__all__ = [
    "CritiqueRefine",
    "PnlcSettings",
    "critique_refine_model",
    "critique_refine_node",
    "decide",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "CritiqueRefine": "pnlc.middleware",
        "PnlcSettings": "pnlc.types",
        "critique_refine_model": "pnlc.node",
        "critique_refine_node": "pnlc.node",
        "decide": "pnlc.decision",
    },
)
