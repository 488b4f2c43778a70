"""Cells of the study's tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduce.study.settings import HOT, TUNED

SAMPLING = {HOT: "temperature 1", TUNED: "tuned"}
"""Regime -> name in tables."""
PARAMETERS = "Policies and value models have 0.36 M parameters each."
"""Note of every table."""


def score(estimate: Mapping[str, Any] | None) -> str:
    """Format a mean and its standard error over tasks; empty if the method has no such score."""
    return "" if estimate is None else f"{estimate['mean']:.3f} ± {estimate['standard_error']:.3f}"


def change(paired: Mapping[str, Any]) -> str:
    """Format a paired difference with its interval, over training seeds too if there are several."""
    crossed = paired.get("low_crossed") is not None
    low, high = (paired["low_crossed"], paired["high_crossed"]) if crossed else (paired["low"], paired["high"])
    return f"{paired['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"
