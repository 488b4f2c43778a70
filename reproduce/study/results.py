"""Read the study's raw results: band -> method -> metric -> score of each task and seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from amc_agents.bench.records import RunResult
from amc_agents.bench.statistics import paired
from amc_agents.errors import ConfigurationError
from amc_agents.types import FloatArray
from reproduce.study.crossed import crossed_interval
from reproduce.study.packed import packed, unpack
from reproduce.study.settings import HOT, POOL, SHIPPED, SIZES, TUNED, Shard, shards
from reproduce.study.subsampling import best_of

Key = tuple[str, int]
"""(Task, seed)."""
COSTS = (
    "policy_calls", "policy_input_tokens", "policy_cached_tokens", "policy_output_tokens", "critic_calls",
    "critic_tokens", "critic_cached_tokens",
)  # fmt: skip


@dataclass
class Scored:
    """Scores of a method in a metric."""

    scores: dict[Key, float] = field(default_factory=dict)

    def by_seed(self, other: Scored) -> FloatArray:
        """`[tasks, K]` differences, for the tasks that all K seeds share."""
        by_seed: dict[int, dict[str, float]] = defaultdict(dict)
        for task, seed in self.scores.keys() & other.scores.keys():
            by_seed[seed][task] = self.scores[task, seed] - other.scores[task, seed]
        common = sorted(set.intersection(*(set(tasks) for tasks in by_seed.values())))
        return np.array([[by_seed[seed][task] for seed in sorted(by_seed)] for task in common])


def difference(a: Scored, b: Scored) -> dict[str, Any]:
    """Return a - b over common (task, seed) pairs, with both intervals."""
    result: dict[str, Any] = paired(a.scores, b.scores)._asdict()
    matrix = a.by_seed(b)
    try:
        result["low_crossed"], result["high_crossed"] = crossed_interval(matrix)
    except ConfigurationError:
        result["low_crossed"] = result["high_crossed"] = None
    return result | {"n_seeds": matrix.shape[1], "of_each_seed": np.round(matrix.mean(0), 4).tolist()}


@dataclass(frozen=True)
class Cells:
    """Results of a band."""

    scores: Mapping[str, Mapping[str, Scored]]
    costs: Mapping[str, Mapping[str, float]]
    """Means over runs."""


def records(band: str, policy: int = SHIPPED) -> Iterator[tuple[Shard, RunResult]]:
    """Iterate over a policy's runs in a band, from finished shards."""
    for shard in shards():
        if (shard.band, shard.policy) == (band, policy) and packed(shard.name).exists():
            yield from ((shard, record) for record in unpack(shard.name)[1])


def read(band: str, policy: int = SHIPPED) -> Cells:
    """Read a policy's results in a band, from finished shards."""
    scores: dict[str, dict[str, Scored]] = defaultdict(lambda: defaultdict(Scored))
    costs: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for shard, record in records(band, policy):
        for name, known, share in _scores_of(record, shard):
            # A single trajectory needs no critic; the pool's critic calls are for Best-of-N.
            alone = name.endswith("react")
            key = (record.task, shard.seed)
            for metric, score in known.items():
                scores[name][metric].scores[key] = score
            for cost in COSTS:
                spent = 0.0 if alone and cost.startswith("critic") else share * getattr(record.cost, cost)
                costs[name][cost].append(spent)
    means = {name: {cost: float(np.mean(spent)) for cost, spent in of.items()} for name, of in costs.items()}
    for regime in (HOT, TUNED):
        pair = [f"{regime}-{name}" for name in ("amc-15", "amc-hidden-15")]
        if all(name in scores for name in pair):
            scores[f"{regime}-amc-both-15"] = _averaged(*(scores[name] for name in pair))
            means[f"{regime}-amc-both-15"] = means[pair[0]]
    return Cells(scores, means)


def _averaged(first: Mapping[str, Scored], second: Mapping[str, Scored]) -> dict[str, Scored]:
    """Average two runs of each task: if rewards come only at the end, hiding them changes only the pick."""
    return {
        metric: Scored({key: (score + second[metric].scores[key]) / 2 for key, score in scored.scores.items()})
        for metric, scored in first.items()
    }


def _scores_of(record: RunResult, shard: Shard) -> list[tuple[str, dict[str, float], float]]:
    """List (method, scores, share of the cost) of a record: one entry for a run, several for a pool."""
    if not record.method.endswith("-pool"):
        known = {metric: getattr(record.scores, metric) for metric in ("oracle", "deployable", "top5", "mean")}
        known["mean_distinct"] = record.scores.mean_distinct
        alone = record.scores.particles == 1
        name = f"{shard.regime}-{record.method}" if record.method == "react" else record.method
        kept = ("oracle", "deployable") if alone else tuple(known)
        return [(name, {metric: known[metric] for metric in kept if known[metric] is not None}, 1.0)]
    assert record.particles is not None
    methods = [
        (f"{shard.regime}-best-of-{size}", best_of(record.particles, size), size / POOL) for size in SIZES
    ]  # fmt: skip
    if shard.regime == HOT:
        # A single trajectory at temperature 1 is any trajectory of the pool.
        mean = float(np.mean(record.particles.returns))
        methods.append(("hot-react", {"oracle": mean, "deployable": mean}, 1 / POOL))
    return methods
