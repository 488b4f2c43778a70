"""AMC: sequential Monte Carlo over N trajectories of any LangGraph agent (paper: AMC)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.population.graph import AmcGraph, amc
    from amc_agents.population.settings import Settings

__all__ = [
    "AmcGraph",
    "Settings",
    "amc",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "AmcGraph": "population.graph",
        "Settings": "population.settings",
        "amc": "population.graph",
    },
)
