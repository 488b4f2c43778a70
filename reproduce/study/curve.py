"""AMC against Best-of-N over N: the pool's subsets against runs of each size."""

from __future__ import annotations

from typing import Any

from amc_agents.bench.statistics import estimate
from amc_agents.markdown import table
from results import Cells, Scored, difference
from settings import SIZES
from table_rows import SAMPLING, change

METRICS = ("oracle", "top5")


def curve(cells: Cells) -> list[dict[str, Any]]:
    """For each regime and N that was run: both methods' scores, and the differences.

    Every N is of the same tasks and seeds: those that all sizes of the regime have.
    """
    found = []
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
            found.append({"regime": regime, "n": size, **means, "differences": changes})
    return found


def curve_table(found: list[dict[str, Any]]) -> str:
    """As Markdown."""
    rows = []
    for one in found:
        pick = one["differences"]["oracle"]
        scores = [f"{one[kind]['oracle']['mean']:.3f}" for kind in ("best_of_n", "amc")]
        size = [str(one["n"]), f"{pick['tasks']} x {pick['n_seeds']}"]
        rows.append([SAMPLING[one["regime"]], *size, *scores, *map(change, one["differences"].values())])
    headings = ["sampling", "N", "tasks x seeds", "Best-of-N", "AMC", "oracle's pick", "top 5"]
    return table(headings, rows, "lrrrrrr") + "\n"
