"""PNLC: each turn is reconsidered before it acts.

The package's model cannot answer a critique. It chooses the best of five thoughts by the critic's value, which is the
paper's ablation without refinement. A model named by `AMC_MODEL` reads the value in words and refines its thought.
`uniform` is not offered: it has no value that a critique could speak of.
"""

from __future__ import annotations

from shared.models import CRITIC, OWN_MODEL, chat_model
from shared.single import single
from shared.tasks import served

from amc_agents import critique_refine_node

offered = ("embedded:crafting", "verdict:embedded:crafting")
decides = critique_refine_node(chat_model(0.6), CRITIC, critique="value", refine=bool(OWN_MODEL), k=5,
                               critics={name: name for name in offered})  # fmt: skip
graph = served("pnlc", single(decides))
