"""Rows and cells of the study's tables, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from settings import HOT, TUNED

SAMPLING = {HOT: "temperature 1", TUNED: "tuned"}
"""What tables call the regimes."""
PARAMETERS = "Policies and value models have 0.36 M parameters each."
"""Said beside every table."""


def score(found: Mapping[str, Any] | None) -> str:
    """A mean and its standard error over tasks; nothing where a method has no such score."""
    return "" if found is None else f"{found['mean']:.3f} ± {found['standard_error']:.3f}"


def change(found: Mapping[str, Any]) -> str:
    """A paired difference with its interval; over training seeds too where there are several."""
    if found.get("low_crossed") is not None:
        found = {**found, "low": found["low_crossed"], "high": found["high_crossed"]}
    return f"{found['difference']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"
