"""LAC: candidate actions re-weighted by a critic (paper: LAC).

The files in reading order:

| file | content |
|---|---|
| `types` | settings, inputs and outputs of a decision |
| `improvement` | the arithmetic: three priors, prior x exp(alpha Q), the choice (eq. 4 to 7) |
| `imagination` | reflections on steps, and imagined rollouts (eq. 3) |
| `decision` | `decide`: sample, judge (eq. 1), choose |
| `text_scoring`, `vllm_text_scorer` | log-likelihoods of given texts, by the embedded model or a server |
| `model` | LAC as a chat model, as a node, and as middleware |

All files above `model` are independent of LangGraph and LangChain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.lac.decision import decide
    from amc_agents.lac.model import ActorCritic, actor_critic_model, actor_critic_node
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
        "ActorCritic": "lac.model",
        "LacSettings": "lac.types",
        "actor_critic_model": "lac.model",
        "actor_critic_node": "lac.model",
        "decide": "lac.decision",
    },
)
