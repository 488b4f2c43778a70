"""Metrics of a value model on held-out tasks, and the tables in which they are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from amc_agents.training.value.rows import TargetRow
from amc_agents.types import FloatArray, IntArray

if TYPE_CHECKING:
    from rich.console import Console


BoolArray = npt.NDArray[np.bool_]


def pearson(values: FloatArray, targets: FloatArray) -> float | None:
    """Return the correlation of `[S]` values with `[S]` targets; None if either is constant.

    >>> round(pearson(np.array([0.1, 0.4, 0.8]), np.array([0.0, 0.0, 1.0])), 3)
    0.904
    """
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(targets) == 0:
        return None
    return float(np.corrcoef(values, targets)[0, 1])


def auc(values: FloatArray, success: FloatArray | BoolArray) -> float | None:
    """Return the probability that a success has a higher value than a failure, counting ties as half.

    None if the states are all successes or all failures.

    >>> auc(np.array([0.1, 0.2, 0.2, 0.9]), np.array([0, 0, 1, 1]))
    0.875
    """
    positive = success.astype(bool)
    n_positive, n_negative = int(positive.sum()), int((~positive).sum())
    if not n_positive or not n_negative:
        return None
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[positive].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def evaluate(rows: Sequence[TargetRow], values: Sequence[FloatArray]) -> dict[str, Any]:
    """Compute the metrics of the values of all rows.

    The loss is over all states, as in training. Pearson r and AUC leave out final states: their outcome is known, which
    would inflate both.

    Args:
        rows: the validation rows.
        values: for each row, `[S]` the values at its marks.

    Returns:
        loss, baseline_loss (of the best constant), pearson, auc, auc_by_step {t: auc}, states, trajectories,
        success_rate. A metric that is not defined is None.
    """
    return evaluate_states(
        np.concatenate([np.asarray(of_row, dtype=np.float64) for of_row in values]),
        np.concatenate([row.targets for row in rows]),
        np.concatenate([row.states for row in rows]),
        np.concatenate([row.final for row in rows]),
        np.concatenate([np.full(len(row.marks), row.success) for row in rows]),
    )


def evaluate_states(
    value: FloatArray, target: FloatArray, state: IntArray, final: BoolArray, success: BoolArray
) -> dict[str, Any]:
    """Compute the metrics of `evaluate` from arrays.

    Args:
        value: `[S]` the values of all states.
        target: `[S]` their targets.
        state: `[S]` number t of each state.
        final: `[S]` whether the state is the end of its trajectory.
        success: `[S]` whether the whole return of its trajectory counts as a success.
    """
    live = ~final
    by_step = {int(t): auc(value[live & (state == t)], success[live & (state == t)]) for t in np.unique(state[live])}
    return {
        "loss": float(np.mean((value - target) ** 2)),
        "baseline_loss": float(np.var(target)),
        "pearson": pearson(value[live], target[live]),
        "auc": auc(value[live], success[live]),
        "auc_by_step": {t: area for t, area in by_step.items() if area is not None},
        "states": len(value),
        "trajectories": int(final.sum()),
        "success_rate": float(success[final].mean()) if final.any() else None,
    }


def print_metrics(
    metrics: Mapping[str, Any], console: Console | None = None, title: str = "value model on held-out tasks"
) -> None:
    """Print whether a value model ranks siblings, then loss, Pearson r, AUC by step over all tasks, and calibration."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console()
    if "ranking" in metrics:
        print_ranking(metrics["ranking"], console)
    table = Table(title=title, show_header=False)
    for name, label in LABELS.items():
        table.add_row(label, _figure(metrics[name]))
    if "unknown_words" in metrics:
        table.add_row("words unknown to the base model", f"{metrics['unknown_words']:.2%}")
    console.print(table)
    by_step = Table("step", "AUC", title="against the final success, over all tasks")
    for step, auc in metrics["auc_by_step"].items():
        by_step.add_row(str(step), f"{auc:.3f}")
    console.print(by_step)
    if "calibration" in metrics:
        _print_calibration(metrics["calibration"], console)


def print_ranking(report: Mapping[str, Any], console: Console) -> None:
    """Print whether a critic ranks siblings.

    Args:
        report: `RankingReport.as_plain()`.
        console: where to print.
    """
    from rich.table import Table

    for sentence in report["sentences"]:
        console.print(sentence)
    if report["auc"] is None:
        return
    table = Table("", "AUC", "95% interval", "pairs", "tasks", title=f"AUC of {COMPARED[report['comparison']]}")
    for label, interval in ranking_rows(report):
        table.add_row(label, *interval)
    console.print(table)


def ranking_rows(report: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the rows of a ranking's table: label, and (AUC, interval, pairs, tasks)."""
    rivals = report["rivals"]
    rows = [
        ("all steps", report["auc"]),
        *((f"step {step}", interval) for step, interval in report["by_step"].items()),
        ("final states", report["at_end"]),
        *((f"a critic of the {name} alone", rival["auc"]) for name, rival in rivals.items()),
        *((f"lead over the {name}", rival["lead"]) for name, rival in rivals.items()),
    ]
    return [(label, _interval_cells(interval)) for label, interval in rows if interval is not None]


def _interval_cells(interval: Mapping[str, Any]) -> list[str]:
    bounds = "" if interval["low"] is None else f"{interval['low']:.3f} to {interval['high']:.3f}"
    return [f"{interval['mean']:.3f}", bounds, f"{interval['pairs']:,}", f"{interval['tasks']:,}"]


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


COMPARED = {
    "siblings": "runs of the same task at the same step",
    "equal step": "runs of different tasks at the same step",
}
"""Comparison of a ranking -> the compared runs."""
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
