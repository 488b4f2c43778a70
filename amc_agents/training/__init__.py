"""Collect trajectories and train critics on them.

| file or package | content |
|---|---|
| `collecting`, `dataset` | play tasks, and store the trajectories |
| `value`, `verdict`, `goal` | train value models (AMC), verdict models (LAC) and goal critics (PNLC) |
| `scoring`, `score_file` | the values of all states of a dataset |
| `splits`, `schedule`, `known_words`, `report` | held-out tasks, learning rate, vocabulary check, printed metrics |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.training.collecting import collect
    from amc_agents.training.goal.train_goal import train_goal
    from amc_agents.training.scoring import score
    from amc_agents.training.value.train_value import train_value
    from amc_agents.training.verdict.train_verdict import train_verdict

__all__ = [
    "collect",
    "score",
    "train_goal",
    "train_value",
    "train_verdict",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "collect": "training.collecting",
        "score": "training.scoring",
        "train_goal": "training.goal.train_goal",
        "train_value": "training.value.train_value",
        "train_verdict": "training.verdict.train_verdict",
    },
)
