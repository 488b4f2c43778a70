"""A value model's metrics, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table


def print_metrics(metrics: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the metrics of held-out tasks: loss, Pearson r, and AUC by step against the final success."""
    console = console or Console()
    table = Table(title="value model on held-out tasks", show_header=False)
    for name, label in _LABELS.items():
        table.add_row(label, _figure(metrics[name]))
    console.print(table)
    by_step = Table("step", "AUC", title="against the final success")
    for step, one in metrics["auc_by_step"].items():
        by_step.add_row(str(step), f"{one:.3f}")
    console.print(by_step)


def _figure(value: float | int | None) -> str:
    if value is None:
        return "not defined"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


_LABELS = {
    "trajectories": "trajectories",
    "states": "states",
    "success_rate": "success rate",
    "loss": "mean squared error",
    "baseline_loss": "of the best constant",
    "pearson": "Pearson r (states with a future)",
    "auc": "AUC (states with a future)",
}
"""Metric -> its line, in order."""
