"""Critics: a trajectory -> a prediction of its future return."""

from __future__ import annotations

from typing import TYPE_CHECKING

from amc_agents._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from amc_agents.critics.spec import parse_critic

__all__ = [
    "parse_critic",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        "parse_critic": "critics.spec",
    },
)
