"""Compare the searches with Best-of-M at equal policy calls and at equal tokens, and with plain AMC.

    PYTHONPATH=reproduce/study python reproduce/beyond/report.py [screen final]

Best-of-M is the expectation over all subsets of a pool of tries, interpolated between whole M; M is what a search's
mean cost pays for. Differences are paired over tasks, with 95% intervals.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping

import numpy as np
from candidates import AMC, CANDIDATES, POOL
from experiment import RAW
from search_settings import GROUPS, HIDDEN, WORLDS, Search

from amc_agents.bench.records import RunResult
from amc_agents.bench.scores import Particles
from amc_agents.bench.statistics import Measured, Paired, estimate, paired
from packed import packed, unpack
from subsampling import best_of

Records = Mapping[tuple[str, int], RunResult]
"""(task, seed) -> run."""


def calls_of(record: RunResult) -> float:
    """Policy calls; K candidates of one prompt count as K."""
    return record.cost.policy_calls


def tokens_of(record: RunResult) -> float:
    """Tokens newly read or written by policy and critic."""
    return record.cost.policy_output_tokens + record.cost.critic_tokens


def main() -> None:
    """Print the tables of the named groups of tasks."""
    for group in sys.argv[1:] or GROUPS:
        for world in WORLDS:
            print(f"\n{world}, {group}\n\n" + "\n".join(table(world, group)))


def table(world: str, group: str) -> list[str]:
    """Return the lines of a world's table."""
    runs = {search.name: read(world, group, search) for search in CANDIDATES[world]}
    pool = runs[POOL[world].name]
    metric = "deployable" if world in HIDDEN else "oracle"
    lines = [
        "| search | tasks | pick | policy calls | tokens | minus Best-of-M at equal calls (M) | at equal tokens (M) "
        "| minus AMC |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, records in runs.items():
        if records and name != POOL[world].name:
            lines.append(row(name, records, pool, runs[AMC[world].name], metric))
    return lines


def read(world: str, group: str, search: Search) -> Records:
    """Read a search's packed runs; empty if there are none."""
    shard = f"{world}-{group}_{search.name}"
    if not packed(shard, RAW).exists():
        return {}
    return {(record.task, record.seed): record for record in unpack(shard, RAW)[1]}


def row(name: str, records: Records, pool: Records, amc: Records, metric: str) -> str:
    """Return a search's line."""
    scores = scores_of(records, metric)
    cells = [name, str(len(scores)), f"{estimate(scores).mean:.3f}"]
    cells += [f"{np.mean([cost(record) for record in records.values()]):,.0f}" for cost in (calls_of, tokens_of)]
    for cost in (calls_of, tokens_of):
        tries, matched = at_equal(cost, records, pool, metric)
        cells.append(f"{shown(paired(scores, matched))} ({tries:.1f})" if len(matched) > 1 else "")
    common = records.keys() & amc.keys()
    cells.append(shown(paired(scores, scores_of(amc, metric))) if len(common) > 1 and records is not amc else "")
    return "| " + " | ".join(cells) + " |"


def at_equal(
    cost: Callable[[RunResult], float], records: Records, pool: Records, metric: str
) -> tuple[float, Measured]:
    """Return M, and the expected scores of Best-of-M by task: M tries cost as much as the search, on average."""
    common = sorted(records.keys() & pool.keys())
    if not common:
        return math.nan, {}
    tries = [cost(pool[key]) / len(particles(pool[key]).returns) for key in common]
    n = float(np.sum([cost(records[key]) for key in common]) / np.sum(tries))
    return n, {key: expected_pick(pool[key], n, metric) for key in common}


def expected_pick(record: RunResult, n: float, metric: str) -> float:
    """Return the expected pick among n of a pool's tries; at most the whole pool."""
    size = len(particles(record).returns)
    low, high = (min(size, whole) for whole in (math.floor(n), math.ceil(n)))
    below, above = (best_of(particles(record), whole, draws=1)[metric] for whole in (low, high))
    return below + (n - math.floor(n)) * (above - below)


def particles(record: RunResult) -> Particles:
    """Return the run's particles."""
    assert record.particles is not None
    return record.particles


def scores_of(records: Records, metric: str) -> Measured:
    """Return a score by task."""
    return {key: float(getattr(record.scores, metric)) for key, record in records.items()}


def shown(difference: Paired) -> str:
    """Show a difference, bold if its interval excludes 0."""
    text = f"{difference.difference:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]"
    return f"**{text}**" if difference.low > 0 or difference.high < 0 else text


if __name__ == "__main__":
    main()
