"""Comparisons of the user's own agent on the user's own tasks.

| file | content |
|---|---|
| `agent` | `module:name` -> agent, checked before anything runs, and its arguments of `amc` |
| `tasks` | tasks of a JSON Lines file, and their split |
| `plan` | the same comparisons as in the library's worlds, with this agent |
| `rollouts` | play tasks to collect a dataset |
| `skeleton` | the files of `amc new` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.bench.own.agent import OwnAgent, load_own_agent
    from amc_agents.bench.own.plan import OwnPlan
    from amc_agents.bench.own.tasks import read_tasks

__all__ = ["OwnAgent", "OwnPlan", "load_own_agent", "read_tasks"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "OwnAgent": "bench.own.agent",
        "OwnPlan": "bench.own.plan",
        "load_own_agent": "bench.own.agent",
        "read_tasks": "bench.own.tasks",
    },
)
