"""From an agent that looks better offline to an agent that is switched on: shadow, then canary (docs/rollout.md).

| file | content |
|---|---|
| `canary_graph` | serve a randomised share of calls by another agent |
| `canary_comparison` | the arms of a canary, key by key, and the newest outcomes |
| `canary_report` | evaluate a canary: compare, watch, stop |
| `shadow_graph` | search in the background of served calls |
| `shadow_search` | the background search of a call, up to the first door; its queue, and the gate that gives way |
| `shadow_report` | evaluate a shadow: ranking, calibration, cost, verdict |
| `confidence` | anytime-valid confidence sequences; how a critic ranks answers by their outcomes |
| `call_records` | what is kept of a call: duration and cost, in SQLite |
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
