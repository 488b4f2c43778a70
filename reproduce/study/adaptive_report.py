"""Tables of the adaptive runs on held-out tasks: results.json, and the README of docs/results/adaptive.

    python reproduce/study/adaptive_report.py

N = 15, the pool of independent trajectories and the plain runs are the study's own records of the same 500 tasks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_agents.bench.methods import Method
from amc_agents.bench.records import Cost, RunResult
from amc_agents.bench.statistics import estimate, paired
from amc_agents.files import replace_file
from amc_agents.markdown import table
from amc_agents.smc import Adaptive
from reproduce.study.adaptive import BAND, OUT, RULE, RULES, adaptive_amc, adaptive_best_of_n, chosen, held_out
from reproduce.study.budget import policy_tokens
from reproduce.study.packed import packed, unpack
from reproduce.study.settings import POOL, SHIPPED, TUNED, Shard
from reproduce.study.subsampling import best_of

Key = tuple[str, int]
N = 15
LABELS = {"react": "one run", "amc": "AMC, N = 15", "best-of-n": "Best-of-15"}
"""Names of the study\'s methods in the table of latencies."""


@dataclass(frozen=True)
class Row:
    """A method's score, policy calls and tokens of each task."""

    label: str
    scores: dict[Key, float]
    calls: dict[Key, float]
    tokens: dict[Key, float]
    """Newly read or written by the policy, or newly read by the critic."""
    critic_tokens: dict[Key, float]
    """The critic's part of them."""


def of_records(label: str, records: Sequence[RunResult], score: str = "oracle") -> Row:
    """Read the records of a method."""
    costs = {(record.task, record.seed): record.cost for record in records}
    return Row(
        label,
        {(record.task, record.seed): float(getattr(record.scores, score)) for record in records},
        {key: float(cost.policy_calls) for key, cost in costs.items()},
        {key: float(policy_tokens(cost) + _critic_tokens(cost)) for key, cost in costs.items()},
        {key: float(_critic_tokens(cost)) for key, cost in costs.items()},
    )


def of_pool(records: Sequence[RunResult], score: str = "oracle") -> Row:
    """Compute Best-of-15 from the study's pool of 20: exact expectations over all subsets."""
    share, scores = N / POOL, {}
    for record in records:
        assert record.particles is not None
        scores[record.task, record.seed] = best_of(record.particles, N)[score]
    costs = {(record.task, record.seed): record.cost for record in records}
    critic = {key: share * _critic_tokens(cost) if score == "deployable" else 0.0 for key, cost in costs.items()}
    return Row(
        "Best-of-15",
        scores,
        {key: share * cost.policy_calls for key, cost in costs.items()},
        {key: share * policy_tokens(cost) + critic[key] for key, cost in costs.items()},
        critic,
    )


def rows(*rules: Adaptive) -> list[Row]:
    """Read the methods that see rewards: the study's, then the adaptive ones with these rules."""
    pool = unpack(Shard(BAND, TUNED, "pool", SHIPPED, 0).name)[1]
    amc = unpack(Shard(BAND, TUNED, "amc", SHIPPED, 0).name)[1]
    study = [
        of_records("one greedy run", [record for record in pool if record.method == "react-greedy"]),
        of_records("one run", [record for record in pool if record.method == "react"]),
        of_pool([record for record in pool if record.method.endswith("pool")]),
        of_records("AMC, N = 15", [record for record in amc if record.method == "tuned-amc-15"]),
    ]
    return _on_common_tasks(study + _were_run(rules, hide_rewards=False))


def hidden_rows() -> list[Row]:
    """Read the methods that see no rewards; their score is that of the deployable pick."""
    pool = unpack(Shard(BAND, TUNED, "pool", SHIPPED, 0).name)[1]
    amc = unpack(Shard(BAND, TUNED, "amc", SHIPPED, 0).name)[1]
    study = [
        of_pool([record for record in pool if record.method.endswith("pool")], "deployable"),
        of_records("AMC, N = 15", [record for record in amc if record.method == "tuned-amc-hidden-15"], "deployable"),
    ]
    return _on_common_tasks(study + _were_run((RULE,), hide_rewards=True))


def compared(a: Row, b: Row) -> dict[str, Any]:
    """Return the paired difference of the scores, and the ratios of calls and tokens with intervals over tasks."""
    difference = paired(a.scores, b.scores)
    return {
        "a": a.label, "b": b.label, "score": difference._asdict(),
        "calls": _ratio(a.calls, b.calls), "tokens": _ratio(a.tokens, b.tokens),
    }  # fmt: skip


def _ratio(a: dict[Key, float], b: dict[Key, float], n_resamples: int = 10_000) -> dict[str, float]:
    keys = sorted(a.keys() & b.keys())
    above, below = np.array([a[key] for key in keys]), np.array([b[key] for key in keys])
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(keys), size=(n_resamples, len(keys)))
    low, high = np.percentile(above[drawn].mean(1) / below[drawn].mean(1), [2.5, 97.5])
    return {"ratio": float(above.mean() / below.mean()), "low": float(low), "high": float(high)}


def _table(of: Sequence[Row], reference: str) -> str:
    base = next(row for row in of if row.label == reference)
    lines = []
    for row in of:
        score = estimate(row.scores)
        against = compared(row, base)
        change, ratio = against["score"], against["calls"]
        lines.append([
            row.label, f"{score.mean:.3f} ± {score.standard_error:.3f}", f"{_mean(row.calls):.1f}",
            f"{_mean(row.tokens):,.0f} ({_mean(row.critic_tokens):,.0f})",
            "" if row is base else f"{change['difference']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]",
            "" if row is base else f"{ratio['ratio']:.2f} [{ratio['low']:.2f}, {ratio['high']:.2f}]",
        ])  # fmt: skip
    headings = ["method", "score", "policy calls", "tokens (critic's)", f"score - {reference}", f"calls / {reference}"]
    return table(headings, lines, "lrrrrr") + "\n"


def main() -> None:
    """Write the tables and the comparisons."""
    seen, curve, hidden = rows(RULE), rows(*RULES), hidden_rows()
    by_label = {row.label: row for row in seen}
    settings = chosen()
    adaptive = by_label[adaptive_amc(settings["amc"]).label]
    others = [
        by_label["AMC, N = 15"],
        by_label["Best-of-15"],
        by_label[adaptive_best_of_n(settings["best-of-n"]).label],
    ]
    pairs = [compared(adaptive, other) for other in others]
    labelled = {row.label: row for row in curve}
    for amc, best_of_n in zip(_of(labelled, "AMC"), _of(labelled, "Best-of-N"), strict=True):
        if not amc.label.endswith(str(RULE)):
            pairs.append(compared(amc, best_of_n))
    facts = {
        "rule": str(RULE), "tasks": len(adaptive.scores), "seeds": 1,
        "rows": [_facts(row) for row in seen], "rows_of_all_rules": [_facts(row) for row in curve],
        "rows_without_rewards": [_facts(row) for row in hidden],
        "comparisons": pairs,
    }  # fmt: skip
    replace_file(OUT / "results.json", json.dumps(facts, indent=1) + "\n")
    tables = {
        "seen": _table(seen, "AMC, N = 15"), "curve": _table(curve, "AMC, N = 15"),
        "hidden": _table(hidden, "AMC, N = 15"), "pairs": _pairs_table(pairs),
        "latency": _latency_table(), "wall clock": _wall_clock_table(),
    }  # fmt: skip
    page = (OUT / "README.md").read_text(encoding="utf-8")
    for name, text in tables.items():
        print(text)
        page = re.sub(
            rf"<!-- {name} -->.*<!-- /{name} -->", f"<!-- {name} -->\n{text}<!-- /{name} -->", page, flags=re.S
        )
    replace_file(OUT / "README.md", page)


def _latency_table() -> str:
    path = OUT / "latency.json"
    if not path.exists():
        return ""
    facts = json.loads(path.read_text(encoding="utf-8"))
    labels = LABELS | {method.name: method.label for pair in held_out() for method in pair}
    rows = [[labels[name], f"{row['median']:.1f} s", f"{row['p95']:.1f} s"] for name, row in facts["methods"].items()]
    return table(["method", "median", "p95"], rows, "lrr") + "\n"


def _wall_clock_table() -> str:
    """Show the measurements of the tasks that all methods have played."""
    measured = [json.loads(line) for line in (OUT / "wall_clock.jsonl").read_text(encoding="utf-8").splitlines()]
    labels = LABELS | {method.name: method.label for pair in held_out() for method in pair}
    by_method: dict[str, dict[str, Any]] = {}
    for row in measured:
        by_method.setdefault(row["method"], {})[row["task"]] = row
    common = set.intersection(*map(set, by_method.values()))
    lines = []
    for name, by_task in by_method.items():
        mine = [by_task[task] for task in common]
        seconds, cpu = ([row[key] for row in mine] for key in ("seconds", "cpu_seconds"))
        requests = np.mean([row["requests"] for row in mine])
        median, p95 = np.percentile(seconds, [50, 95])
        lines.append([labels[name], f"{median:.1f} s", f"{p95:.1f} s", f"{requests:.0f}", f"{np.median(cpu):.2f} s"])
    print(f"{len(common)} tasks, load {np.mean([row['load'] for row in measured if row['task'] in common]):.0f}")
    return table(["method", "median", "p95", "requests", "CPU time, median"], lines, "lrrrr") + "\n"


def _pairs_table(pairs: Sequence[dict[str, Any]]) -> str:
    lines = []
    for pair in pairs:
        score, calls, tokens = pair["score"], pair["calls"], pair["tokens"]
        lines.append([
            pair["a"], pair["b"], f"{score['difference']:+.3f} [{score['low']:+.3f}, {score['high']:+.3f}]",
            f"{calls['ratio']:.2f} [{calls['low']:.2f}, {calls['high']:.2f}]",
            f"{tokens['ratio']:.2f} [{tokens['low']:.2f}, {tokens['high']:.2f}]",
        ])  # fmt: skip
    return table(["a", "b", "score a - b", "calls a / b", "tokens a / b"], lines, "llrrr") + "\n"


def _of(by_label: dict[str, Row], kind: str) -> list[Row]:
    return [row for label, row in sorted(by_label.items()) if label.startswith(f"{kind}, ") and ".." in label]


def _on_common_tasks(of: Sequence[Row]) -> list[Row]:
    """Keep the tasks that all methods have played."""
    common = set.intersection(*(set(row.scores) for row in of))

    def kept(values: dict[Key, float]) -> dict[Key, float]:
        return {key: value for key, value in values.items() if key in common}

    return [Row(row.label, kept(row.scores), kept(row.calls), kept(row.tokens), kept(row.critic_tokens)) for row in of]


def _facts(row: Row) -> dict[str, Any]:
    return {
        "method": row.label, "score": estimate(row.scores)._asdict(), "policy_calls": _mean(row.calls),
        "tokens": _mean(row.tokens), "critic_tokens": _mean(row.critic_tokens),
    }  # fmt: skip


def _adaptive(method: Method) -> Row:
    records = unpack(_name(method), OUT / "raw")[1]
    return of_records(method.label, records, "deployable" if method.hide_rewards else "oracle")


def _were_run(rules: Sequence[Adaptive], *, hide_rewards: bool) -> list[Row]:
    every = [
        method
        for pair in held_out()
        for method in pair
        if method.hide_rewards == hide_rewards and method.n_particles in rules
    ]
    return [_adaptive(method) for method in every if packed(_name(method), OUT / "raw").exists()]


def _name(method: Method) -> str:
    return method.name.replace(" ", "_")


def _critic_tokens(cost: Cost) -> int:
    return cost.critic_tokens - cost.critic_cached_tokens


def _mean(of: dict[Key, float]) -> float:
    return float(np.mean(list(of.values())))


if __name__ == "__main__":
    main()
