"""Collect trajectories and train critics, or the policy, on them.

| file or package | content |
|---|---|
| `collecting`, `dataset` | play tasks, and store the trajectories |
| `value`, `verdict`, `goal` | train value models (AMC), verdict models (LAC) and goal critics (PNLC) |
| `policy` | train the policy itself on what a search found |
| `scoring`, `score_file` | the values of all states of a dataset |
| `splits`, `schedule`, `known_words`, `report` | held-out tasks, learning rate, vocabulary check, printed metrics |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.training.collecting import collect
    from amc_agents.training.goal.train_goal import train_goal
    from amc_agents.training.policy.settings import DistillSettings
    from amc_agents.training.policy.training import distill
    from amc_agents.training.scoring import score
    from amc_agents.training.value.train_value import train_value
    from amc_agents.training.verdict.train_verdict import train_verdict

__all__ = [
    "DistillSettings",
    "collect",
    "distill",
    "score",
    "train_goal",
    "train_value",
    "train_verdict",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "DistillSettings": "training.policy.settings",
        "collect": "training.collecting",
        "distill": "training.policy.training",
        "score": "training.scoring",
        "train_goal": "training.goal.train_goal",
        "train_value": "training.value.train_value",
        "train_verdict": "training.verdict.train_verdict",
    },
)
