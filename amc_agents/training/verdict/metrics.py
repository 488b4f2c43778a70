"""How good a verdict critic is on held-out tasks: above all, in picking among candidates that disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from amc_agents.lac.improvement import choose, frequency_prior, improved
from amc_agents.training.value.metrics import auc
from amc_agents.training.verdict.data import Judged
from amc_agents.training.verdict.labels import LABELS
from amc_agents.training.verdict.rows import VerdictRow
from amc_agents.types import FloatArray

ALPHAS = (0.5, 1.0, 2.0, 5.0)


class Told(NamedTuple):
    """What a model says of the branches of a row."""

    log_p: FloatArray
    """`[verdicts, 3]` log-probability of each label's word."""
    loss: float
    """Mean loss of the row's verdicts, weighted."""
    weight: float
    observed_right: tuple[bool, ...]
    """For each observation, whether every token of it is the likeliest one."""


def evaluate(judged: Sequence[Judged], rows: Sequence[VerdictRow], told: Sequence[Told]) -> dict[str, Any]:
    """Metrics of what a model told of rows.

    Args:
        judged: the trajectories that the rows are of.
        rows: with the verdicts that were asked for.
        told: of each row.

    Returns:
        loss; accuracy and AUC (log-odds of GOOD against BAD steps) of actions, and of steps after their observation;
        observation_match; and `picks`: of the states where candidates disagree, the share in which each way of choosing
        takes a GOOD one. A figure that is not defined is None.
    """
    branches = [one for row in rows for one in row.branches]
    log_p = np.concatenate([one.log_p for one in told])
    label = np.array([LABELS.index(one.label) for one in branches])
    after = np.array([bool(one.step.observation) for one in branches])
    q = log_p[:, 0] - log_p[:, 1]
    weights = np.array([one.weight for one in told])
    right = [match for one in told for match in one.observed_right]
    found: dict[str, Any] = {
        "loss": float(np.array([one.loss for one in told]) @ weights / weights.sum()),
        "observation_match": float(np.mean(right)) if right else None,
        "verdicts": len(branches),
    }
    for name, chosen in (("", ~after), ("_observed", after)):
        told_apart = chosen & (label < 2)
        found[f"accuracy{name}"] = (
            float(np.mean(log_p[chosen].argmax(axis=1) == label[chosen])) if chosen.any() else None
        )
        found[f"auc{name}"] = auc(q[told_apart], label[told_apart] == 0) if told_apart.any() else None
    return found | {"picks": picks(judged, rows, q)}


def picks(judged: Sequence[Judged], rows: Sequence[VerdictRow], q: FloatArray) -> dict[str, float | int]:
    """The share of states with disagreeing candidates in which a GOOD one is chosen, by each way of choosing.

    Ways: one sample, the vote, the greedy turn, the vote with the greedy turn as a candidate, the improved policy at
    each alpha (with the greedy turn as a candidate), and the critic alone.
    """
    of = {(id(one.trajectory), t): one.options[t] for one in judged for t in range(len(one.options)) if one.disagree(t)}
    asked: dict[tuple[int, int], float] = {}
    branches = [one for row in rows for one in row.branches]
    for one, value in zip(branches, q, strict=True):
        if not one.step.observation:
            asked[id(one.step), one.state] = float(value)
    totals: dict[str, list[float]] = {}
    for (_, t), options in of.items():
        if any((id(one.step), t) not in asked for one in options):
            continue
        good = np.array([one.label == "GOOD" for one in options], dtype=float)
        n = np.array([one.n for one in options])
        values = np.array([asked[id(one.step), t] for one in options])
        best = next((i for i, one in enumerate(options) if one.greedy), None)
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
    """The figures of held-out tasks, as a table."""
    from rich.table import Table

    table = Table(title="verdicts on held-out tasks", show_header=False)
    for name, label in _LABELS.items():
        table.add_row(label, "not defined" if metrics[name] is None else f"{metrics[name]:.3f}")
    table.add_row("states whose candidates differ", str(metrics["picks"]["states"]))
    for name, share in metrics["picks"].items():
        if name != "states":
            table.add_row(f"GOOD ones picked there: {name.replace('_', ' ')}", f"{share:.3f}")
    console.print(table)


_LABELS = {
    "loss": "loss",
    "accuracy": "accuracy of verdicts on actions",
    "auc": "AUC of GOOD against BAD actions",
    "accuracy_observed": "accuracy, the observation seen",
    "auc_observed": "AUC, the observation seen",
    "observation_match": "observations foretold word for word",
}
"""Metric -> its line, in order."""
