"""AMC against Best-of-N over N: the pool's subsets against runs of each size."""

from __future__ import annotations

from typing import Any

from results import Cells, difference
from settings import SIZES
from table_rows import SAMPLING, change, row

METRICS = ("oracle", "top5")


def curve(cells: Cells) -> list[dict[str, Any]]:
    """For each regime and N that was run: both methods' scores on their common tasks and seeds, and the differences."""
    found = []
    for regime in SAMPLING:
        for size in SIZES:
            names = {"amc": f"{regime}-amc-{size}", "best_of_n": f"{regime}-best-of-{size}"}
            if any(name not in cells.scores for name in names.values()):
                continue
            amc, best = (cells.scores[name] for name in names.values())
            common = sorted(amc["oracle"].scores.keys() & best["oracle"].scores.keys())
            means = {
                kind: {of: sum(cells.scores[name][of].scores[key] for key in common) / len(common) for of in METRICS}
                for kind, name in names.items()
            }
            changes = {of: difference(amc[of], best[of]) for of in METRICS}
            found.append({"regime": regime, "n": size, **means, "differences": changes})
    return found


def curve_table(found: list[dict[str, Any]]) -> str:
    """As Markdown."""
    lines = [row(["sampling", "N", "tasks x seeds", "Best-of-N", "AMC", "oracle's pick", "top 5"])]
    lines += [row(["---", "---:", "---:", "---:", "---:", "---:", "---:"])]
    for one in found:
        pick = one["differences"]["oracle"]
        scores = [f"{one[kind]['oracle']:.3f}" for kind in ("best_of_n", "amc")]
        size = [str(one["n"]), f"{pick['tasks']} x {pick['n_seeds']}"]
        lines.append(row([SAMPLING[one["regime"]], *size, *scores, *map(change, one["differences"].values())]))
    return "\n".join([*lines, ""])
