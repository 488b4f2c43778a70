"""LAC: candidate actions re-weighted by a critic (paper: LAC).

The files in reading order:

| file | content |
|---|---|
| `types` | settings, inputs and outputs of a decision |
| `improvement` | the arithmetic: three priors, prior x exp(alpha Q), the choice (eq. 4 to 7) |
| `prior` | the prior of a decision, and the texts that are scored for it |
| `reflection` | reflections on steps, and their verdicts |
| `imagination` | imagined rollouts (eq. 3) |
| `judging` | Q of the candidates (eq. 1) |
| `decision` | `decide`: sample, judge, choose |
| `text_scoring` | log-likelihoods of given texts; `vllm_text_scorer` and `embedded_text_scorer` compute them |
| `reflected_messages` | reflections in a conversation of LangChain messages |
| `model` | LAC as a chat model |
| `node`, `middleware` | the chat model in a graph, and in an agent |

All files above `reflected_messages` are independent of LangGraph and LangChain.
"""

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
