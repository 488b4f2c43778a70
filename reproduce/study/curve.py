"""Compare AMC with Best-of-N over N: runs of each size with subsets of the pool."""

from __future__ import annotations

from typing import Any

from amc_agents.bench.statistics import estimate
from amc_agents.markdown import table
from reproduce.study.results import Cells, Scored, difference
from reproduce.study.settings import SIZES
from reproduce.study.table_rows import SAMPLING, change

METRICS = ("oracle", "top5")


def curve(cells: Cells) -> list[dict[str, Any]]:
    """Return both methods' scores and their differences for each regime and N.

    All N have the same tasks and seeds, those that all sizes of the regime share.
    """
    rows = []
    for regime in SAMPLING:
        named = {size: (f"{regime}-amc-{size}", f"{regime}-best-of-{size}") for size in SIZES}
        done = {size: names for size, names in named.items() if all(name in cells.scores for name in names)}
        if not done:
            continue
        every = [cells.scores[name]["oracle"].scores.keys() for names in done.values() for name in names]
        common = sorted(set.intersection(*map(set, every)))
        for size, names in done.items():
            amc, best = (
                {of: Scored({key: cells.scores[name][of].scores[key] for key in common}) for of in METRICS}
                for name in names
            )
            means = {
                kind: {of: estimate(each[of].scores)._asdict() for of in METRICS}
                for kind, each in (("amc", amc), ("best_of_n", best))
            }
            changes = {of: difference(amc[of], best[of]) for of in METRICS}
            rows.append({"regime": regime, "n": size, **means, "differences": changes})
    return rows


def curve_table(sizes: list[dict[str, Any]]) -> str:
    """Format the rows as Markdown."""
    rows = []
    for size in sizes:
        pick = size["differences"]["oracle"]
        scores = [f"{size[kind]['oracle']['mean']:.3f}" for kind in ("best_of_n", "amc")]
        label = [str(size["n"]), f"{pick['tasks']} x {pick['n_seeds']}"]
        rows.append([SAMPLING[size["regime"]], *label, *scores, *map(change, size["differences"].values())])
    headings = ["sampling", "N", "tasks x seeds", "Best-of-N", "AMC", "oracle's pick", "top 5"]
    return table(headings, rows, "lrrrrrr") + "\n"
