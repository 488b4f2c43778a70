"""Finished particles kept or retired, at equal policy calls: what the default of `finished` rests on.

Kept particles need fewer calls. Retiring is therefore interpolated, for each task, between two numbers of particles so
that both take the same number of policy calls on average.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from amc_agents.bench.records import RunResult
from amc_agents.markdown import table
from results import Key, Scored, difference
from settings import SIZES, Shard
from subsampling import distinct_successes
from table_rows import SAMPLING, change

KEPT = "amc-keep-15"
METRICS = {
    "oracle": "oracle's pick",
    "weighted_mean": "weighted mean",
    "distinct": "distinct successes",
    "mean": "mean particle",
}


def finished(records: Iterable[tuple[Shard, RunResult]]) -> dict[str, dict[str, Any]]:
    """Regime -> the policy calls of both, and for each metric both scores and their difference.

    A regime is left out where no two sizes of a run with retired particles need fewer and more calls.
    """
    runs: dict[tuple[str, str], dict[Key, RunResult]] = defaultdict(dict)
    for shard, record in records:
        runs[shard.regime, record.method.removeprefix(f"{shard.regime}-")][record.task, shard.seed] = record
    compared = {regime: _compared(regime, runs) for regime in SAMPLING if (regime, KEPT) in runs}
    return {regime: one for regime, one in compared.items() if one is not None}


def _compared(regime: str, runs: Mapping[tuple[str, str], Mapping[Key, RunResult]]) -> dict[str, Any] | None:
    kept = runs[regime, KEPT]
    retired = [of for size in SIZES if (of := runs.get((regime, f"amc-{size}"), {})).keys() >= kept.keys()]
    calls = _mean(kept, kept, _calls)
    spent = [_mean(of, kept, _calls) for of in retired]
    above = int(np.searchsorted(spent, calls))
    if not 0 < above < len(retired):
        return None
    fewer, more = retired[above - 1], retired[above]
    share = (calls - spent[above - 1]) / (spent[above] - spent[above - 1])
    scores = {}
    for metric in METRICS:
        score = _SCORES[metric]
        mine = Scored({key: score(record) for key, record in kept.items()})
        other = Scored({key: (1 - share) * score(fewer[key]) + share * score(more[key]) for key in kept})
        means = [float(np.mean(list(one.scores.values()))) for one in (mine, other)]
        scores[metric] = {"keep": means[0], "retire": means[1], "change": difference(mine, other)}
    return {"policy_calls": calls, "scores": scores}


def _mean(runs: Mapping[Key, RunResult], keys: Iterable[Key], of: Callable[[RunResult], float]) -> float:
    return float(np.mean([of(runs[key]) for key in keys]))


def _calls(record: RunResult) -> float:
    return record.cost.policy_calls


def _distinct(record: RunResult) -> float:
    assert record.particles is not None
    return distinct_successes(record.particles, len(record.particles.returns))


_SCORES: Mapping[str, Callable[[RunResult], float]] = {
    "oracle": lambda record: record.scores.oracle,
    "weighted_mean": lambda record: record.scores.weighted_mean,
    "distinct": _distinct,
    "mean": lambda record: record.scores.mean,
}


def finished_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """As Markdown."""
    headings = ["sampling", "tasks x seeds", "policy calls", "score", "kept", "retired", "kept - retired"]
    rows = []
    for regime, one in found.items():
        for metric, scores in one["scores"].items():
            seen = scores["change"]
            numbers = [f"{seen['tasks']} x {seen['n_seeds']}", f"{one['policy_calls']:.0f}", METRICS[metric]]
            means = [f"{scores[which]:.3f}" for which in ("keep", "retire")]
            rows.append([SAMPLING[regime], *numbers, *means, change(seen)])
    return table(headings, rows, "lrrlrrr") + "\n"
