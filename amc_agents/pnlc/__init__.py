"""PNLC: planning with a natural-language critic (paper: PNLC).

The files in reading order:

| file | content |
|---|---|
| `types` | settings, inputs and outputs of a decision |
| `prompts` | the prompts, all replaceable |
| `goals` | goals proposed by a language model |
| `critique` | the critique in words, and the parsing of answers |
| `judge` | likelihoods of goals, or of success, for a thought |
| `decision` | `decide`: think, judge, refine or choose |
| `thinker` | a chat model that thinks, answers a critique and acts |
| `model` | PNLC as a chat model |
| `node`, `middleware` | the chat model in a graph, and in an agent |

All files above `thinker` are independent of LangGraph and LangChain.
"""

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
