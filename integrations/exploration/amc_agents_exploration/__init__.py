"""Exploration over many episodes: worlds with hidden instances, exact agents, the papers' baselines, `amc explore`.

| module or package | content |
|---|---|
| `worlds` | bandits, a combination lock, Wordle and RiverSwim, with exact optimal values |
| `exact` | conjugate models of these worlds, classic PSRL and IDS, the Bayes-optimal lock, exact roles |
| `episodic` | the protocol of agents that learn over episodes; LLM-PSRL and LLM-IDS as such agents |
| `baselines` | Reflexion, in-context RL, in-context policy iteration |
| `comparison` | trials, measures of regret, reports and figures |
| `registered`, `command` | the worlds and the command that the core finds by their entry points |
| `testing` | a chat model that plays every role exactly |
"""

from pathlib import Path

BANDIT_SAMPLER = Path(__file__).parent / "bandit-sampler"
"""Folder of the shipped model, which draws hypotheses from a bandit's posterior."""

__all__ = ["BANDIT_SAMPLER"]
