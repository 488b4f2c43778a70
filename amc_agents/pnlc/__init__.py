"""PNLC: planning with a natural-language critic (paper: PNLC).

The files in reading order:

| file | content |
|---|---|
| `types` | settings, inputs and outputs of a decision |
| `prompts` | the prompts, all replaceable; goals, the critique in words, and the parsing of answers |
| `decision` | `decide`: think, judge, refine or choose |
| `model` | PNLC as a chat model, as a node, and as middleware |

All files above `model` are independent of LangGraph and LangChain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.pnlc.decision import decide
    from amc_agents.pnlc.model import CritiqueRefine, critique_refine_model, critique_refine_node
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
        "CritiqueRefine": "pnlc.model",
        "PnlcSettings": "pnlc.types",
        "critique_refine_model": "pnlc.model",
        "critique_refine_node": "pnlc.model",
        "decide": "pnlc.decision",
    },
)
