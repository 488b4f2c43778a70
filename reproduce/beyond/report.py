"""Compare the searches with Best-of-M at equal policy calls and at equal tokens, and with plain AMC.

    python reproduce/beyond/report.py

Best-of-M is the expectation over all subsets of a pool of tries, interpolated between whole M; M is what a search's
mean cost pays for. Differences are paired over tasks, with 95% intervals.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import reduce
from pathlib import Path

import numpy as np

from amc_agents.bench.records import Particles, RunResult
from amc_agents.bench.statistics import Measured, Paired, estimate, paired
from reproduce.beyond.candidates import AMC, CANDIDATES, CONFIRMING, POOL
from reproduce.beyond.experiment import RAW
from reproduce.beyond.search_settings import BLIND, BOTH, HARD, HIDDEN, STOCK, Search
from reproduce.pages import write_parts
from reproduce.study.packed import packed, unpack
from reproduce.study.subsampling import expected_pick

PAGE = Path("docs/results/beyond/README.md")
TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "both": (BOTH, ("final", "confirm")),
    "both-first": (BOTH, ("final",)),
    "both-second": (BOTH, ("confirm",)),
    "hard": (HARD, ("final",)),
    "blind": (BLIND, ("final",)),
    "both-screen": (BOTH, ("screen",)),
    "hard-screen": (HARD, ("screen",)),
}
LEAST_TASKS = 10
"""Searches with fewer tasks are left out."""
EARLIER = {
    STOCK: ("pool-T0.7", "amc-T0.8-every-4-beta0.1"),
    BLIND: ("pool-T0.9", "amc-hidden-T0.8-every-2-beta0.2"),
    BOTH: ("pool-T0.7", "amc-hidden-T0.8-every-2-beta0.2"),
}
"""The pool and plain AMC of docs/results/worlds."""
STUDY, WORLDS_RAW = Path("docs/results/study/raw"), Path("docs/results/worlds/raw")
Records = Mapping[tuple[str, int], RunResult]
"""(task, seed) -> run."""


def calls_of(record: RunResult) -> float:
    """Policy calls; K candidates of one prompt count as K."""
    return record.cost.policy_calls


def tokens_of(record: RunResult) -> float:
    """Tokens newly read or written by policy and critic."""
    cost = record.cost
    written_and_read = cost.policy_output_tokens + cost.policy_input_tokens - cost.policy_cached_tokens
    return written_and_read + cost.critic_tokens - cost.critic_cached_tokens


def main() -> None:
    """Write the tables of the results' page, from the packed runs."""
    write_parts(PAGE, {name: "\n".join(table(world, groups)) for name, (world, groups) in TABLES.items()})


def table(world: str, groups: Sequence[str]) -> list[str]:
    """Return the lines of a world's table, over the tasks of all groups."""
    runs: dict[str, Records] = {search.name: {} for search in CANDIDATES[world]}
    pool: Records = {}
    for group in groups:
        of_group = {search.name: read(world, group, search) for search in CANDIDATES[world]}
        tries, amc = baselines(world, group, of_group)
        pool = {**pool, **tries}
        for name, records in {**of_group, AMC[world].name: amc}.items():
            runs[name] = {**runs[name], **records}
    metric = "deployable" if world in HIDDEN else "oracle"
    lines = [
        "| search | tasks | pick | policy calls | tokens | minus Best-of-M at equal calls (M) | at equal tokens (M) "
        "| minus AMC |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, records in runs.items():
        if len(records.keys() & pool.keys()) >= LEAST_TASKS and name not in (POOL[world].name, CONFIRMING.name):
            lines.append(row(name, records, pool, runs[AMC[world].name], metric))
    return lines


def baselines(world: str, group: str, runs: Mapping[str, Records]) -> tuple[Records, Records]:
    """Return the pools of tries and plain AMC; on test tasks, those of the earlier experiments."""
    if group == "screen":
        return runs.get(POOL[world].name, {}), runs[AMC[world].name]
    if group == "confirm":
        return runs.get(CONFIRMING.name, {}), runs[AMC[world].name]
    if world == HARD:
        pools = [earlier(STUDY / f"hard-tuned-pool-policy0-seed{seed}.jsonl.gz", "tuned-pool") for seed in range(3)]
        unjudged = [{key: without_critic(record) for key, record in pool.items()} for pool in pools]
        return joined(unjudged), earlier(STUDY / "hard-tuned-amc-policy0-seed0.jsonl.gz", "tuned-amc-15")
    pool, amc = (earlier(WORLDS_RAW / f"{world}-{name}.jsonl.gz", name) for name in EARLIER[world])
    if world == STOCK:
        pool = {key: without_critic(record) for key, record in pool.items()}
    return pool, amc


def earlier(path: Path, method: str) -> Records:
    """Read a method's runs from a packed shard of another experiment, all as seed 0."""
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]
    records = [RunResult.from_json(values) for values in rows if values.get("method") == method]
    return {(record.task, 0): record for record in records}


def joined(pools: Sequence[Records]) -> Records:
    """Join the tries of several pools, where all of them have the task."""
    common = set.intersection(*(set(pool) for pool in pools if pool))
    return {key: reduce(with_tries_of, [pool[key] for pool in pools if pool]) for key in sorted(common)}


def with_tries_of(first: RunResult, second: RunResult) -> RunResult:
    """Join two pools of a task; only what `best_of` and the costs need."""
    a, b, size = particles(first), particles(second), len(particles(first).returns)
    tries = Particles((*a.returns, *b.returns), (*a.values, *b.values), (*a.same_as, *(size + i for i in b.same_as)))
    summed = {
        name: value + getattr(second.cost, name)
        for name, value in asdict(first.cost).items()
        if name.startswith(("policy", "critic"))
    }
    return replace(first, particles=tries, cost=replace(first.cost, **summed))


def without_critic(record: RunResult) -> RunResult:
    """Leave out the critic's cost: where rewards are seen, Best-of-N needs no critic."""
    return replace(record, cost=replace(record.cost, critic_calls=0, critic_tokens=0, critic_cached_tokens=0))


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
    return n, {key: expected_pick(particles(pool[key]), n, metric) for key in common}


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
