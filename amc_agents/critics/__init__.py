"""Judgement: trajectory -> the return still to come.

Names are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from amc_agents.critics.spec import parse_critic

__all__ = ["parse_critic"]

_HOME = {"parse_critic": "spec"}
"""Where each name lives."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME:
        raise AttributeError(f"module 'amc_agents.critics' has no attribute {name!r}")
    value = getattr(import_module(f"amc_agents.critics.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
