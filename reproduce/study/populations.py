"""Final populations: size, copies, distinct successes, and the AUC of final values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from amc_agents.bench.records import Particles, RunResult
from amc_agents.markdown import table
from reproduce.study.results import Scored, difference
from reproduce.study.settings import Shard
from reproduce.study.subsampling import distinct_successes
from reproduce.study.table_rows import SAMPLING, change

METHODS = {"amc-15": "AMC", "amc-keep-15": "AMC, finished particles kept"}
N = 15
SUCCESS = 1.0


def populations(records: Iterable[tuple[Shard, RunResult]]) -> list[dict[str, Any]]:
    """Describe AMC's populations in each regime, and compare their distinct successes with those of as many tries."""
    tries: dict[str, Scored] = defaultdict(Scored)
    runs: dict[tuple[str, str], list[RunResult]] = defaultdict(list)
    successes: dict[tuple[str, str], Scored] = defaultdict(Scored)
    pools: dict[str, list[Particles]] = defaultdict(list)
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
            pools[shard.regime].append(particles)
        elif name in METHODS:
            successes[shard.regime, name].scores[key] = distinct_successes(particles, len(particles.returns))
            runs[shard.regime, name].append(record)
    order = [(regime, name) for regime in SAMPLING for name in METHODS if (regime, name) in runs and regime in tries]
    return [
        {
            "regime": regime, "method": name,
            **_sizes(runs[regime, name]),
            "distinct_successes": _mean(successes[regime, name]), "of_tries": _mean(tries[regime]),
            "change": difference(successes[regime, name], tries[regime]),
            "auc": auc(pools[regime]),
        }
        for regime, name in order
    ]  # fmt: skip


def _sizes(runs: Sequence[RunResult]) -> dict[str, float]:
    scores = [run.scores for run in runs]
    return {
        "particles": float(np.mean([score.particles for score in scores])),
        "most": max(score.particles for score in scores),
        "distinct": float(np.mean([score.distinct for score in scores])),
        "weighted_mean": float(np.mean([score.weighted_mean for score in scores])),
        "oracle": float(np.mean([score.oracle for score in scores])),
    }


def auc(pools: Sequence[Particles]) -> float | None:
    """Return the AUC of final values against success; None if all trajectories succeed or all fail."""
    values = np.concatenate([pool.values for pool in pools])
    won = np.concatenate([pool.returns for pool in pools]) >= SUCCESS
    if won.all() or not won.any():
        return None
    _, rank, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle = (np.cumsum(counts) - (counts - 1) / 2)[rank]
    wins, losses = int(won.sum()), int((~won).sum())
    return float((middle[won].sum() - wins * (wins + 1) / 2) / (wins * losses))


def _mean(scored: Scored) -> float:
    return sum(scored.scores.values()) / len(scored.scores)


def populations_table(populations_of: Mapping[str, list[dict[str, Any]]]) -> str:
    """Format the populations as Markdown, by band."""
    headings = [
        "tasks", "sampling", "method", "trajectories (at most)", "different ones", "distinct successes",
        "of Best-of-15", "difference", "weighted mean", "AUC of final values",
    ]  # fmt: skip
    rows = []
    for title, of_band in populations_of.items():
        for population in of_band:
            area = "" if population["auc"] is None else f"{population['auc']:.3f}"
            numbers = [f"{population['particles']:.1f} ({population['most']})", f"{population['distinct']:.1f}"]
            numbers += [f"{population[of]:.2f}" for of in ("distinct_successes", "of_tries")]
            numbers += [change(population["change"]), f"{population['weighted_mean']:.3f}", area]
            rows.append([title, SAMPLING[population["regime"]], METHODS[population["method"]], *numbers])
    return table(headings, rows, "lll" + "r" * 7) + "\n"
