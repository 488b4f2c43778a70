"""Compare keeping with retiring finished particles at equal policy calls: the reason for the default of `finished`.

Keeping needs fewer calls. The scores of retiring are therefore interpolated for each task between two numbers of
particles, so that both have the same mean number of policy calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from amc_agents.bench.records import RunResult
from amc_agents.markdown import table
from reproduce.study.results import Key, Scored, difference
from reproduce.study.settings import SIZES, Shard
from reproduce.study.subsampling import distinct_successes
from reproduce.study.table_rows import SAMPLING, change

KEPT = "amc-keep-15"
METRICS = {
    "oracle": "oracle's pick",
    "weighted_mean": "weighted mean",
    "distinct": "distinct successes",
    "mean": "mean particle",
}


def finished(records: Iterable[tuple[Shard, RunResult]]) -> dict[str, dict[str, Any]]:
    """Return regime -> the common number of policy calls, and for each metric both scores and their difference.

    A regime is left out if no two sizes with retired particles bracket the number of calls.
    """
    runs: dict[tuple[str, str], dict[Key, RunResult]] = defaultdict(dict)
    for shard, record in records:
        runs[shard.regime, record.method.removeprefix(f"{shard.regime}-")][record.task, shard.seed] = record
    compared = {regime: _compared(regime, runs) for regime in SAMPLING if (regime, KEPT) in runs}
    return {regime: comparison for regime, comparison in compared.items() if comparison is not None}


def _compared(regime: str, runs: Mapping[tuple[str, str], Mapping[Key, RunResult]]) -> dict[str, Any] | None:
    kept = runs[regime, KEPT]
    retired = [of for size in SIZES if (of := runs.get((regime, f"amc-{size}"), {})).keys() >= kept.keys()]
    calls = _mean(kept, kept, _calls)
    retired_calls = [_mean(of, kept, _calls) for of in retired]
    above = int(np.searchsorted(retired_calls, calls))
    if not 0 < above < len(retired):
        return None
    fewer, more = retired[above - 1], retired[above]
    share = (calls - retired_calls[above - 1]) / (retired_calls[above] - retired_calls[above - 1])
    scores = {}
    for metric in METRICS:
        score = _SCORES[metric]
        keeping = Scored({key: score(record) for key, record in kept.items()})
        retiring = Scored({key: (1 - share) * score(fewer[key]) + share * score(more[key]) for key in kept})
        means = [float(np.mean(list(scored.scores.values()))) for scored in (keeping, retiring)]
        scores[metric] = {"keep": means[0], "retire": means[1], "change": difference(keeping, retiring)}
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


def finished_table(comparison_of: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the comparison as Markdown."""
    headings = ["sampling", "tasks x seeds", "policy calls", "score", "kept", "retired", "kept - retired"]
    rows = []
    for regime, comparison in comparison_of.items():
        for metric, scores in comparison["scores"].items():
            paired = scores["change"]
            numbers = [f"{paired['tasks']} x {paired['n_seeds']}", f"{comparison['policy_calls']:.0f}", METRICS[metric]]
            means = [f"{scores[which]:.3f}" for which in ("keep", "retire")]
            rows.append([SAMPLING[regime], *numbers, *means, change(paired)])
    return table(headings, rows, "lrrlrrr") + "\n"
