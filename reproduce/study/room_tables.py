"""Table of an oracle's gain: Best-of-N for several N from the same pool, and the oracle at two settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from amc_agents.bench.records import TOP, RunResult
from amc_agents.bench.statistics import estimate
from amc_agents.markdown import table
from reproduce.study.packed import packed, unpack
from reproduce.study.results import Scored, difference
from reproduce.study.room import AT_ITS_OWN, AT_STUDYS_SETTINGS, POOL, POOL_NAME, ROOMS
from reproduce.study.subsampling import distinct_successes, expected_top
from reproduce.study.table_rows import PARAMETERS, change, score

SIZES = (15, 30, 60)
REFERENCE = "Best-of-15"
LABELS = {AT_STUDYS_SETTINGS: "AMC, oracle, the study's settings", AT_ITS_OWN: "AMC, oracle, settings of its own"}
METRICS = {"oracle": "oracle's pick", "top5": "top 5", "distinct": "distinct successes"}


def room() -> dict[str, Any]:
    """Read method -> policy calls, scores and differences from Best-of-15, from finished shards."""
    scores: dict[str, dict[str, Scored]] = defaultdict(lambda: defaultdict(Scored))
    calls: dict[str, list[float]] = defaultdict(list)
    for shard in ROOMS:
        for record in unpack(shard.name)[1] if packed(shard.name).exists() else ():
            for name, known, n_calls in _scores_of(record):
                calls[name].append(n_calls)
                for metric, value in known.items():
                    scores[name][metric].scores[record.task, record.seed] = value
    order = [name for name in (*(f"Best-of-{n}" for n in SIZES), *LABELS.values()) if name in scores]
    return {
        name: {
            "policy_calls": sum(calls[name]) / len(calls[name]),
            "scores": {metric: estimate(scored.scores)._asdict() for metric, scored in scores[name].items()},
            "changes": {
                metric: difference(scored, scores[REFERENCE][metric]) for metric, scored in scores[name].items()
            },
        }
        for name in order
    }


def _scores_of(record: RunResult) -> list[tuple[str, dict[str, float], float]]:
    """List (method, scores, policy calls) of a record: one entry for a run, several for a pool."""
    particles, calls = record.particles, record.cost.policy_calls
    assert particles is not None
    if record.method != POOL_NAME:
        distinct = distinct_successes(particles, len(particles.returns))
        known = {"oracle": record.scores.oracle, "top5": record.scores.top5, "distinct": distinct}
        return [(LABELS[record.method], known, calls)]
    return [
        (
            f"Best-of-{n}",
            {
                "oracle": expected_top(particles.returns, n),
                "top5": expected_top(particles.returns, n, TOP),
                "distinct": distinct_successes(particles, n),
            },
            calls * n / POOL,
        )
        for n in SIZES
    ]


def room_table(methods: Mapping[str, Any]) -> str:
    """Format the methods as Markdown."""
    n_tasks = methods[REFERENCE]["scores"]["oracle"]["tasks"]
    lines = [
        f"{n_tasks} fresh tasks of 12 to 16 optimal steps, N = 15. The study's settings: temperature .5, resampling "
        "after steps 3, 6, 9, 12 and 15, the oracle's probability of success at beta .1. Its own: temperature .8, "
        "resampling after every step, weights exp(1.5 x steps that can still be wasted). Tries at temperature .6. "
        f"Differences are from Best-of-15. {PARAMETERS}",
        "",
    ]
    headings = ["method", "policy calls", *(text for name in METRICS.values() for text in (name, "difference"))]
    rows = []
    for name, method in methods.items():
        cells = [
            text
            for metric in METRICS
            for text in (
                score(method["scores"][metric]),
                "" if name == REFERENCE else change(method["changes"][metric]),
            )
        ]
        rows.append([name, f"{method['policy_calls']:.0f}", *cells])
    return "\n".join([*lines, table(headings, rows, "l" + "r" * (len(headings) - 1)), ""])
