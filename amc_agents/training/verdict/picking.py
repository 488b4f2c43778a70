"""Metrics of a verdict critic on held-out tasks, above all its picks among candidates that disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from amc_agents.lac.improvement import choose, frequency_prior, improved
from amc_agents.training.metrics import auc
from amc_agents.training.verdict.labelling import LABELS, Judged
from amc_agents.training.verdict.passes import RowPrediction, VerdictRow
from amc_agents.types import FloatArray

ALPHAS = (0.5, 1.0, 2.0, 5.0)


def evaluate(
    judged: Sequence[Judged], rows: Sequence[VerdictRow], predictions: Sequence[RowPrediction]
) -> dict[str, Any]:
    """Compute metrics of a model's predictions.

    Args:
        judged: the trajectories of the rows.
        rows: the rows.
        predictions: the prediction of each row.

    Returns:
        loss; accuracy and AUC (log-odds of GOOD against BAD steps) of actions, and of steps after their observation;
        observation_match; and `picks`: the share of states with disagreeing candidates in which each selection rule
        picks a GOOD candidate. An undefined metric is None.
    """
    branches = [branch for row in rows for branch in row.branches]
    log_p = np.concatenate([prediction.log_p for prediction in predictions])
    label = np.array([LABELS.index(branch.label) for branch in branches])
    after = np.array([bool(branch.step.observation) for branch in branches])
    q = log_p[:, 0] - log_p[:, 1]
    weights = np.array([prediction.weight for prediction in predictions])
    right = [match for prediction in predictions for match in prediction.observed_right]
    metrics: dict[str, Any] = {
        "loss": float(np.array([prediction.loss for prediction in predictions]) @ weights / weights.sum()),
        "observation_match": float(np.mean(right)) if right else None,
        "verdicts": len(branches),
    }
    for name, chosen in (("", ~after), ("_observed", after)):
        known = chosen & (label < 2)
        metrics[f"accuracy{name}"] = (
            float(np.mean(log_p[chosen].argmax(axis=1) == label[chosen])) if chosen.any() else None
        )
        metrics[f"auc{name}"] = auc(q[known], label[known] == 0) if known.any() else None
    return metrics | {"picks": picks(judged, rows, q)}


def picks(judged: Sequence[Judged], rows: Sequence[VerdictRow], q: FloatArray) -> dict[str, float | int]:
    """Return the share of states with disagreeing candidates in which each selection rule picks a GOOD candidate.

    Rules: a sample, the vote, the greedy turn, the vote with the greedy turn as a candidate, the improved policy at
    each alpha (with the greedy turn as a candidate), and the critic only.
    """
    disagreeing = [(t, play.options[t]) for play in judged for t in range(len(play.options)) if play.disagree(t)]
    q_of: dict[tuple[int, int], float] = {}
    branches = [branch for row in rows for branch in row.branches]
    for branch, value in zip(branches, q, strict=True):
        if not branch.step.observation:
            q_of[id(branch.step), branch.state] = float(value)
    totals: dict[str, list[float]] = {}
    for t, options in disagreeing:
        if any((id(option.step), t) not in q_of for option in options):
            continue
        good = np.array([option.label == "GOOD" for option in options], dtype=float)
        n = np.array([option.n for option in options])
        values = np.array([q_of[id(option.step), t] for option in options])
        best = next((i for i, option in enumerate(options) if option.greedy), None)
        prior = frequency_prior(n, best)
        chosen = {
            "sampled": float(good @ n / n.sum()) if n.sum() else 0.0,
            "vote": good[int(n.argmax())],
            "vote_and_greedy": good[choose(improved(prior, values, 0.0), prior)],
            "critic": good[choose(improved(prior, values, float("inf")), prior)],
        } | {f"alpha_{alpha:g}": good[choose(improved(prior, values, alpha), prior)] for alpha in ALPHAS}
        if best is not None:
            chosen["greedy"] = good[best]
        for name, value in chosen.items():
            totals.setdefault(name, []).append(float(value))
    return {name: float(np.mean(values)) for name, values in totals.items()} | {
        "states": max(map(len, totals.values()), default=0)
    }


def print_metrics(metrics: Mapping[str, Any], console: Any) -> None:
    """Print metrics of held-out tasks as a table."""
    from rich.table import Table

    table = Table(title="verdicts on held-out tasks", show_header=False)
    for name, label in _LABELS.items():
        table.add_row(label, "not defined" if metrics[name] is None else f"{metrics[name]:.3f}")
    table.add_row("states whose candidates differ", str(metrics["picks"]["states"]))
    for name, share in metrics["picks"].items():
        if name != "states":
            table.add_row(f"GOOD picks there: {name.replace('_', ' ')}", f"{share:.3f}")
    console.print(table)


_LABELS = {
    "loss": "loss",
    "accuracy": "accuracy of verdicts on actions",
    "auc": "AUC of GOOD against BAD actions",
    "accuracy_observed": "accuracy after the observation",
    "auc_observed": "AUC after the observation",
    "observation_match": "observations predicted exactly",
}
"""Metric -> label, in display order."""
