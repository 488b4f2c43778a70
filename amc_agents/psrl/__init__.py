"""PSRL and IDS: learning over episodes by posterior sampling and information-directed sampling (paper: LLM-PSRL).

| file or package | content |
|---|---|
| `roles` | the roles of the language model, and an episode's steps as text |
| `ids` | LLM-IDS: estimates, the information ratio, the choice |
| `posterior` | the posterior: versions, updates, learning from steps, its LangGraph store, typed priors |
| `options` | models of the roles, and settings |
| `episodes`, `explorers` | LLM-PSRL (algorithm 1) and LLM-IDS over a conversation of messages |
| `nodes`, `middleware` | the methods in a graph, and in an agent |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.psrl.middleware import InformationDirected, PosteriorSampling
    from amc_agents.psrl.nodes import exploring_text_agent, information_directed_nodes, posterior_sampling_nodes
    from amc_agents.psrl.options import RoleModel
    from amc_agents.psrl.posterior.store import StorePosterior

__all__ = [
    "InformationDirected",
    "PosteriorSampling",
    "RoleModel",
    "StorePosterior",
    "exploring_text_agent",
    "information_directed_nodes",
    "posterior_sampling_nodes",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "InformationDirected": "psrl.middleware",
        "PosteriorSampling": "psrl.middleware",
        "RoleModel": "psrl.options",
        "StorePosterior": "psrl.posterior.store",
        "exploring_text_agent": "psrl.nodes",
        "information_directed_nodes": "psrl.nodes",
        "posterior_sampling_nodes": "psrl.nodes",
    },
)
