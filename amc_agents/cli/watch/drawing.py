"""Draw snapshots: one run with its particles, or several runs, a line each; and a weighing as a line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table

from amc_agents.cli.watch.snapshot import ParticleRow, Snapshot
from amc_agents.quoting import excerpt
from amc_agents.run import WeighingPoint

_BAR = 10
"""Width of the bar of a weight, in characters."""
_LAST_POINTS = 3
_LEAST_ROWS = 3
_OTHER_LINES = 10
"""Lines of a view that are no rows of its table."""


def one_run(shown: Snapshot, height: int) -> RenderableType:
    """Draw a run with its particles.

    Args:
        shown: the run.
        height: lines of the terminal; particles of little weight are left out where it is too small.
    """
    table = Table(box=None, pad_edge=False, expand=True)
    for name, width in _COLUMNS.items():
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=True, overflow="ellipsis",
                         min_width=width, ratio=None if width else 1)  # fmt: skip
    most = max(_LEAST_ROWS, height - _OTHER_LINES)
    kept = sorted(sorted(shown.particles, key=lambda row: -row.share)[:most], key=lambda row: row.slot)
    for row in kept:
        table.add_row(*_cells(row))
    left_out = len(shown.particles) - len(kept)
    return Group(
        summary(shown),
        table,
        *([f"and {left_out} particles of less weight"] if left_out else []),
        *(point_text(point) for point in shown.points[-_LAST_POINTS:]),
    )


def several_runs(runs: Sequence[Snapshot], height: int) -> RenderableType:
    """Draw runs in progress, a line each."""
    table = Table(box=None, pad_edge=False)
    for name in ("run", "step", "running", "ended", "failed", "value", "ESS", "resampled", "calls", "tokens"):
        table.add_column(name, justify="left" if name == "run" else "right", no_wrap=True, overflow="ellipsis")
    most = max(_LEAST_ROWS, height - _OTHER_LINES)
    for shown in runs[:most]:
        ess = f"{shown.points[-1].ess:.1f}" if shown.points else ""
        ended = shown.number("finished", "cut") + shown.n_retired
        counts = (shown.number("runs", "waits", "queued"), ended, shown.number("failed"))
        best = max((row.value for row in shown.particles if not math.isnan(row.value)), default=math.nan)
        table.add_row(excerpt(shown.name), f"{shown.step}", *map(str, counts), _number(best), ess,
                      f"{shown.n_resampled}", f"{shown.calls:,}", f"{shown.tokens:,}")  # fmt: skip
    return Group(table, f"and {len(runs) - most} more runs") if len(runs) > most else table


def summary(shown: Snapshot) -> str:
    """Describe a run in a line."""
    parts = [
        f"step {shown.step}",
        f"{len(shown.particles)} particles",
        *([f"{shown.n_retired} retired"] if shown.n_retired else []),
        f"resampled {shown.n_resampled} times",
        f"{shown.calls:,} calls, {shown.tokens:,} tokens",
        *([f"rate limit: next request in {shown.held_back_s:.0f} s"] if shown.held_back_s else []),
        *(f"{name} {spent:,.4g} of {limit:,.4g}" for name, (spent, limit) in shown.budget.items()),
    ]
    return " | ".join(parts)


def point_text(point: WeighingPoint) -> str:
    """Describe a weighing and what followed."""
    n = len(point.values)
    known = point.values[~np.isnan(point.values)]
    values = f"values {known.min():.3g} to {known.max():.3g}" if known.size else "no values"
    text = f"step {point.step}: {values}, ESS {point.ess:.1f}"
    if point.selected is not None:
        return f"{text}; particle {point.selected} acted, and all continue it"
    if point.ancestors is None:
        return text
    retired = f", {len(point.retired)} retired" if point.retired else ""
    return f"{text}; resampled: {len(np.unique(point.ancestors))} of {n} have offspring{retired}"


def _cells(row: ParticleRow) -> tuple[str, ...]:
    bar = "#" * round(_BAR * row.share)
    numbers = (_number(row.return_), _number(row.value))
    return str(row.slot), str(row.steps), row.state, *numbers, f"{row.share:.0%}", bar, excerpt(row.action)


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


_COLUMNS = {
    "slot": 4, "step": 4, "state": 8, "return": 6, "value": 8, "weight": 6, "": _BAR, "last action": None,
}  # fmt: skip
"""Name and width of each column; the last takes the rest."""
_NUMBERS = ("slot", "step", "return", "value", "weight")
