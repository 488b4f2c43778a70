"""Print the metrics of a value model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def print_metrics(
    metrics: Mapping[str, Any], console: Console | None = None, title: str = "value model on held-out tasks"
) -> None:
    """Print loss, Pearson r, AUC by step against the final success, and the calibration of a value model."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    table = Table(title=title, show_header=False)
    for name, label in LABELS.items():
        table.add_row(label, _figure(metrics[name]))
    console.print(table)
    by_step = Table("step", "AUC", title="against the final success")
    for step, auc in metrics["auc_by_step"].items():
        by_step.add_row(str(step), f"{auc:.3f}")
    console.print(by_step)
    if "calibration" in metrics:
        _print_calibration(metrics["calibration"], console)


def _print_calibration(report: Mapping[str, Any], console: Console) -> None:
    from rich.table import Table

    title = f"{report['kind']} calibration, cross-validated over {report['n_tasks']} tasks"
    table = Table("", "before", "after", "change", title=title)
    for name, label in (("error", "calibration error"), ("squared", "mean squared error")):
        table.add_row(label, *(_estimate(report[f"{name}_{when}"]) for when in ("before", "after", "change")))
    console.print(table)
    console.print(f"Sampling noise alone would give a calibration error of about {report['error_by_luck']:.3f}.")


def _estimate(estimate: Mapping[str, float]) -> str:
    return f"{estimate['mean']:.3f} ± {estimate['standard_error']:.3f}"


def _figure(value: float | int | None) -> str:
    if value is None:
        return "not defined"
    return str(value) if isinstance(value, int) else f"{value:.3f}"


LABELS = {
    "trajectories": "trajectories",
    "states": "states",
    "success_rate": "success rate",
    "loss": "mean squared error",
    "baseline_loss": "mean squared error of the best constant",
    "pearson": "Pearson r (states with a future)",
    "auc": "AUC (states with a future)",
}
"""Metric -> label, in display order."""
