"""Rows and cells of the study's tables, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from settings import HOT, TUNED

SAMPLING = {HOT: "temperature 1", TUNED: "tuned"}
"""What tables call the regimes."""


def row(cells: list[str]) -> str:
    """A row of a table."""
    return "| " + " | ".join(cells) + " |"


def change(found: Mapping[str, Any]) -> str:
    """A paired difference with its interval over tasks."""
    return f"{found['difference']:+.3f} [{found['low']:+.3f}, {found['high']:+.3f}]"
