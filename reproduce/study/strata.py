"""Stratify tasks by the success rate of a single trajectory, measured in the pools of the other seeds.

If measured in the same pool, tasks on which Best-of-N was unlucky would count as hard, which would look like a gain of
AMC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from amc_agents.bench.statistics import estimate, paired
from amc_agents.markdown import table
from reproduce.study.results import Cells, Key
from reproduce.study.table_rows import SAMPLING, change

LIMITS = (0.0, 0.1, 0.3, 1.0)
"""Upper limits of the strata: never, up to a tenth, ..."""
AMC, BEST = "amc-both-15", "best-of-15"


def stratum_of(share: float) -> int:
    """Return the number of the stratum."""
    return next(number for number, limit in enumerate(LIMITS) if share <= limit)


def strata(cells: Cells, regime: str) -> list[dict[str, Any]]:
    """Compare Best-of-15 and AMC in each stratum; empty with fewer than two seeds."""
    names = f"{regime}-{BEST}", f"{regime}-{AMC}"
    if any(name not in cells.scores for name in names):
        return []
    # The mean particle of Best-of-15 over all subsets is the mean of the pool.
    elsewhere = shares_elsewhere(cells.scores[names[0]]["mean"].scores)
    rows = []
    for number in range(len(LIMITS)):
        of = {key for key, share in elsewhere.items() if stratum_of(share) == number}
        for metric in ("oracle", "top5"):
            scored = [cells.scores[name][metric].scores for name in names]
            common = of & scored[0].keys() & scored[1].keys()
            if len({task for task, _ in common}) < 2:
                continue
            best, amc = ({key: scores[key] for key in common} for scores in scored)
            means = {"best_of_15": estimate(best).mean, "amc": estimate(amc).mean}
            rows.append({"stratum": number, "metric": metric, **means, **paired(amc, best)._asdict()})
    return rows


def shares_elsewhere(shares: Mapping[Key, float]) -> dict[Key, float]:
    """Average the success rate over the other seeds of each task; tasks with a single seed are left out."""
    of_task: dict[str, dict[int, float]] = defaultdict(dict)
    for (task, seed), share in shares.items():
        of_task[task][seed] = share
    return {
        (task, seed): sum(share for other, share in of_seed.items() if other != seed) / (len(of_seed) - 1)
        for task, of_seed in of_task.items()
        if len(of_seed) > 1
        for seed in of_seed
    }


def strata_tables(strata_of: Mapping[str, list[dict[str, Any]]]) -> str:
    """Format the strata as Markdown, by regime."""
    bounds = ["never", *(f"above {low:g} to {high:g}" for low, high in pairwise(LIMITS))]
    rows = []
    for regime, comparisons in strata_of.items():
        by_stratum: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
        for comparison in comparisons:
            by_stratum[comparison["stratum"]][comparison["metric"]] = comparison
        for number, metrics in sorted(by_stratum.items()):
            pick = metrics["oracle"]
            scores = [f"{pick[name]:.3f}" for name in ("best_of_15", "amc")]
            rows.append([SAMPLING[regime], bounds[number], str(pick["tasks"]), *scores, *map(change, metrics.values())])
    headings = ["sampling", "one trajectory succeeds", "tasks", "Best-of-15", "AMC", "difference", "top 5"]
    return table(headings, rows, "llrrrrr") + "\n"
