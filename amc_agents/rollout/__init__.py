"""From an agent that looks better offline to an agent that is switched on: shadow, then canary (docs/rollout.md).

| file | content |
|---|---|
| `canary_graph` | serve a randomised share of calls by another agent |
| `canary_report` | evaluate a canary: compare, watch, stop |
| `comparison` | the arms of a canary, key by key |
| `sequence` | anytime-valid confidence sequences |
| `watching` | the newest outcomes: level, calibration, over-optimisation |
| `ranking` | how a critic ranks answers by their outcomes |
| `measuring` | duration and cost of a call |
| `records` | the durable records, in SQLite |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.rollout.canary_graph import canary
    from amc_agents.rollout.canary_report import CanaryReport

__all__ = ["CanaryReport", "canary"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "CanaryReport": "rollout.canary_report",
        "canary": "rollout.canary_graph",
    },
)
