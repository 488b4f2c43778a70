"""Compare each method with as many independent tries as its tokens pay for.

Only computed tokens count: tokens that policy and critic read without a cache hit, and tokens that the policy writes.
Tries pay for no critic, because picking by known rewards needs none. A method whose tokens pay for more tries than were
played is compared with all of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from amc_agents.bench.records import TOP, Cost, RunResult
from amc_agents.markdown import table
from reproduce.study.results import Key, Scored, difference
from reproduce.study.settings import Shard
from reproduce.study.subsampling import expected_top
from reproduce.study.table_rows import SAMPLING, change

METHODS = {
    "amc-15": "AMC",
    "amc-hidden-15": "AMC, rewards hidden",
    "amc-keep-15": "AMC, finished particles kept",
    "amc-shuffled-15": "AMC, critic of shuffled targets",
    "smc-15": "SMC, rewards only",
}


def policy_tokens(cost: Cost) -> int:
    """Count the tokens that the policy read without a cache hit, and wrote."""
    return cost.policy_input_tokens - cost.policy_cached_tokens + cost.policy_output_tokens


def budget(records: Iterable[tuple[Shard, RunResult]]) -> list[dict[str, Any]]:
    """Compare the methods of each regime with the tries of all seeds that their tokens pay for."""
    pools: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    scored: dict[tuple[str, str], tuple[Scored, Scored]] = defaultdict(lambda: (Scored(), Scored()))
    tokens: dict[tuple[str, str], dict[Key, int]] = defaultdict(dict)
    for shard, record in records:
        name = record.method.removeprefix(f"{shard.regime}-")
        key, cost = (record.task, shard.seed), record.cost
        if name == "pool":
            assert record.particles is not None
            pools[shard.regime][record.task].extend(record.particles.returns)
            tokens[shard.regime, name][key] = policy_tokens(cost)
        elif name in METHODS:
            for of, score in zip(scored[shard.regime, name], (record.scores.oracle, record.scores.top5), strict=True):
                of.scores[key] = score
            tokens[shard.regime, name][key] = policy_tokens(cost) + cost.critic_tokens - cost.critic_cached_tokens
    # The order of the tables.
    order = [(regime, name) for regime in SAMPLING for name in METHODS if (regime, name) in scored and pools[regime]]
    return [_compared(*which, scored[which], pools[which[0]], tokens) for which in order]


def _compared(
    regime: str,
    name: str,
    scored: tuple[Scored, Scored],
    pool: Mapping[str, list[float]],
    tokens: Mapping[tuple[str, str], Mapping[Key, int]],
) -> dict[str, Any]:
    pool_tokens, method_tokens = tokens[regime, "pool"], tokens[regime, name]
    size = min(map(len, pool.values()))
    # All seeds have pools of the same size.
    per_try = sum(pool_tokens.values()) / sum(map(len, pool.values()))
    affordable = sum(method_tokens.values()) / len(method_tokens) / per_try
    tries = min(affordable, size)
    best = [
        Scored({key: expected_top(pool[key[0]], tries, k) for key in of.scores if key[0] in pool})
        for of, k in zip(scored, (1, TOP), strict=True)
    ]
    return {
        "regime": regime, "method": name, "tokens": affordable * per_try, "affordable": affordable, "tries": tries,
        "score": _mean(scored[0]), "best_of_n": _mean(best[0]),
        "oracle": difference(scored[0], best[0]), "top5": difference(scored[1], best[1]),
    }  # fmt: skip


def _mean(scored: Scored) -> float:
    return sum(scored.scores.values()) / len(scored.scores)


def budget_table(comparisons_of: Mapping[str, list[dict[str, Any]]]) -> str:
    """Format the comparisons as Markdown, by band."""
    headings = ["tasks", "sampling", "method", "tokens a task", "tries that these pay for", "those tries", "method's"]
    rows = []
    for title, comparisons in comparisons_of.items():
        for comparison in comparisons:
            more = f" (of {comparison['affordable']:.1f})" if comparison["affordable"] > comparison["tries"] else ""
            numbers = [
                f"{comparison['tokens']:,.0f}",
                f"{comparison['tries']:.1f}{more}",
                f"{comparison['best_of_n']:.3f}",
            ]
            numbers.append(f"{comparison['score']:.3f}")
            changes = [change(comparison[metric]) for metric in ("oracle", "top5")]
            rows.append([title, SAMPLING[comparison["regime"]], METHODS[comparison["method"]], *numbers, *changes])
    return table([*headings, "oracle's pick", "top 5"], rows, "lllrrrrrr") + "\n"
