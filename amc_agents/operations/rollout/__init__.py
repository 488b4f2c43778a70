"""From an agent that looks better offline to an agent that is switched on: shadow, then canary (docs/rollout.md).

| file | content |
|---|---|
| `canary_graph` | serve a randomised share of calls by another agent |
| `canary_report` | evaluate a canary: compare, watch, stop |
| `comparison` | the arms of a canary, key by key |
| `sequence` | anytime-valid confidence sequences |
| `watching` | the newest outcomes: level, calibration, over-optimisation |
| `ranking` | how a critic ranks answers by their outcomes |
| `shadow_graph` | search in the background of served calls |
| `shadow_report` | evaluate a shadow: ranking, calibration, cost, verdict |
| `search` | the background search of one call, up to the first door |
| `background` | the queue of searches, and the gate that gives way to calls |
| `tapping` | the final state of a call, whatever its caller streams |
| `wrapping` | a compiled graph that delegates to another |
| `measuring` | duration and cost of a call |
| `records` | the durable records, in SQLite |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.operations.rollout.canary_graph import canary
    from amc_agents.operations.rollout.canary_report import CanaryReport
    from amc_agents.operations.rollout.shadow_graph import shadow
    from amc_agents.operations.rollout.shadow_report import ShadowReport

__all__ = ["CanaryReport", "ShadowReport", "canary", "shadow"]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "CanaryReport": "operations.rollout.canary_report",
        "ShadowReport": "operations.rollout.shadow_report",
        "canary": "operations.rollout.canary_graph",
        "shadow": "operations.rollout.shadow_graph",
    },
)
