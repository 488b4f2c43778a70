"""What a run's final population holds: its size, copies, distinct successes; and whether final values show success."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amc_agents.bench.records import RunResult
from amc_agents.bench.scores import Particles
from amc_agents.markdown import table
from results import Scored, difference
from settings import Shard
from subsampling import distinct_successes
from table_rows import SAMPLING, change

METHODS = {"amc-15": "AMC", "amc-keep-15": "AMC, finished particles kept"}
N = 15
SUCCESS = 1.0


def populations(records: Iterable[tuple[Shard, RunResult]]) -> list[dict[str, Any]]:
    """AMC's populations in each regime, their distinct successes against those of as many tries."""
    tries: dict[str, Scored] = defaultdict(Scored)
    runs: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    found: dict[tuple[str, str], Scored] = defaultdict(Scored)
    read: dict[str, list[Particles]] = defaultdict(list)
    for shard, record in records:
        name, key, particles = (
            record.method.removeprefix(f"{shard.regime}-"),
            (record.task, shard.seed),
            record.particles,
        )
        if particles is None:
            continue
        if name == "pool":
            tries[shard.regime].scores[key] = distinct_successes(particles, N)
            read[shard.regime].append(particles)
        elif name in METHODS:
            found[shard.regime, name].scores[key] = distinct_successes(particles, len(particles.returns))
            runs[shard.regime, name].append(record)
    order = [(regime, name) for regime in SAMPLING for name in METHODS if (regime, name) in runs and regime in tries]
    return [
        {
            "regime": regime, "method": name,
            **_sizes(runs[regime, name]),
            "distinct_successes": _mean(found[regime, name]), "of_tries": _mean(tries[regime]),
            "change": difference(found[regime, name], tries[regime]),
            "auc": auc(read[regime]),
        }
        for regime, name in order
    ]  # fmt: skip


def _sizes(runs: Sequence[RunResult]) -> dict[str, float]:
    scores = [one.scores for one in runs]
    return {
        "particles": float(np.mean([one.particles for one in scores])),
        "most": max(one.particles for one in scores),
        "distinct": float(np.mean([one.distinct for one in scores])),
        "weighted_mean": float(np.mean([one.weighted_mean for one in scores])),
        "oracle": float(np.mean([one.oracle for one in scores])),
    }


def auc(pools: Sequence[Particles]) -> float | None:
    """Area under the ROC curve of a trajectory's final value against its success; None where all end alike."""
    values = np.concatenate([one.values for one in pools])
    won = np.concatenate([one.returns for one in pools]) >= SUCCESS
    if won.all() or not won.any():
        return None
    _, rank, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = (np.cumsum(counts) - (counts - 1) / 2)[rank]
    wins, losses = int(won.sum()), int((~won).sum())
    return float((middle[won].sum() - wins * (wins + 1) / 2) / (wins * losses))


def _mean(scored: Scored) -> float:
    return sum(scored.scores.values()) / len(scored.scores)


def populations_table(found: Mapping[str, list[dict[str, Any]]]) -> str:
    """As Markdown, by band."""
    headings = [
        "tasks", "sampling", "method", "trajectories (at most)", "different ones", "distinct successes",
        "of Best-of-15", "difference", "weighted mean", "AUC of final values",
    ]  # fmt: skip
    rows = []
    for title, comparisons in found.items():
        for one in comparisons:
            area = "" if one["auc"] is None else f"{one['auc']:.3f}"
            numbers = [f"{one['particles']:.1f} ({one['most']})", f"{one['distinct']:.1f}"]
            numbers += [f"{one[of]:.2f}" for of in ("distinct_successes", "of_tries")]
            numbers += [change(one["change"]), f"{one['weighted_mean']:.3f}", area]
            rows.append([title, SAMPLING[one["regime"]], METHODS[one["method"]], *numbers])
    return table(headings, rows, "lll" + "r" * 7) + "\n"
