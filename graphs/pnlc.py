"""PNLC: each turn is reconsidered before it acts.

The package's model cannot answer a critique. It chooses the best of five thoughts by the critic's value, which is the
paper's ablation without refinement. A model named by `AMC_MODEL` reads the value in words and refines its thought.
"""

from __future__ import annotations

import os

from shared import CRITIC, chat_model, served, single

from amc_agents import critique_refine_node

refine = "AMC_MODEL" in os.environ
graph = served("pnlc", single(critique_refine_node(chat_model(0.6), CRITIC, critique="value", refine=refine, k=5,
                                                   critics={"embedded:crafting": "embedded:crafting"})))  # fmt: skip
