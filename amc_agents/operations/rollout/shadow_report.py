"""The report of a shadow: what can be known without serving."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from amc_agents.critics.reliability import Bin, reliability
from amc_agents.operations.importing.logged_runs import outcome_in
from amc_agents.operations.rollout.call_records import Records
from amc_agents.operations.rollout.confidence import SMALLEST, Ranking, mean_of, rank
from amc_agents.types import plain

KIND = "shadow"
USELESS = 0.55
"""An AUC below this bound is no reason for a canary."""
N_BINS = 5
ONE_LOOK = "the interval holds for one look, at a number of outcomes fixed beforehand"

Verdict = Literal["start a canary", "not yet", "do not"]


@dataclass(frozen=True)
class Cost:
    """Mean cost of a call."""

    seconds: float
    tokens: float
    dollars: float
    """Of the calls whose cost is known; NaN if it is known for none."""


@dataclass(frozen=True)
class ShadowReport:
    """What is known of a shadow now. `print` shows it.

    It claims no lift: answers that were not served have no outcome.
    """

    verdict: Verdict
    why: str
    """The reason of the verdict."""
    n_more: int | None
    """Estimated number of further outcomes until a verdict; None: unknown, or decided."""
    ranking: Ranking | None
    """How the critic's values rank the served answers by their outcomes; None: too few outcomes."""
    bias: float
    """Mean value minus mean outcome of the served answers; NaN without outcomes."""
    bins: tuple[Bin, ...]
    """Outcome by rising value."""
    counts: Mapping[str, int]
    """Calls, sampled calls, and calls that were not searched for, by reason."""
    n_searched: int
    n_failed: int
    """Number of searches that failed."""
    failures: tuple[tuple[str, int], ...]
    """The most frequent failures."""
    n_outcomes: int
    """Number of searched calls whose outcome is known."""
    differs: float
    """Share of the searches whose best answer was another one, with a larger value; NaN without searches."""
    at_door: float
    """Share of the searches that ended before a commit call or a question; NaN without searches."""
    served: Cost
    search: Cost
    lost: int = 0
    """Number of records that this process could not write."""

    def as_plain(self) -> dict[str, Any]:
        """Convert the report to JSON-compatible values."""
        values: dict[str, Any] = plain(asdict(self))
        return values

    def __str__(self) -> str:
        """The report in lines of text."""
        more = "" if self.n_more is None else f" (about {self.n_more:,} more outcomes)"
        lines = [f"verdict: {self.verdict}{more}", self.why]
        if self.ranking is not None:
            lines.append(f"ranking: AUC {self.ranking}, {self.ranking.n:,} served answers with outcomes; {ONE_LOOK}")
        if self.bins:
            lines.append(f"calibration: values are {abs(self.bias):.3f} {'above' if self.bias > 0 else 'below'} the "
                         "outcomes on average")  # fmt: skip
            lines += [f"  value {each.predicted:>8.3g}: outcome {each.observed:.3f} ({each.n:,})" for each in self.bins]
        lines.append(
            ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in sorted(self.counts.items())) or "no calls"
        )
        if self.n_searched:
            lines.append(f"AMC would have answered differently in {self.differs:.0%} of {self.n_searched:,} searches; "
                         f"{self.at_door:.0%} ended before a commit call or a question")  # fmt: skip
            ratio = _ratio(self.search.tokens, self.served.tokens)
            lines.append(f"cost of a search: {ratio} the tokens of an answer ({self.search.tokens:,.0f}), "
                         f"{self.search.seconds:.3g} s, {_dollars(self.search)}")  # fmt: skip
            lines.append(f"cost of an answer: {self.served.tokens:,.0f} tokens, {self.served.seconds:.3g} s, "
                         f"{_dollars(self.served)}")  # fmt: skip
        lines += [f"failed {n:,} times: {cause}" for cause, n in self.failures]
        return "\n".join([*lines, *([f"warning: {self.lost} records were lost"] if self.lost else [])])


def read_report(folder: str | Path | Records, outcomes: Mapping[str, float] | None = None) -> ShadowReport:
    """Read the records of a shadow, and judge its critic.

    Args:
        folder: of the shadow.
        outcomes: to join first, by the id of a run or a thread.
    """
    records = folder if isinstance(folder, Records) else Records(folder, KIND, must_exist=True)
    if outcomes:
        records.add_outcomes(outcomes)
    calls, known = records.calls(), records.outcomes()
    searched = [call for call in calls if call.get("best_value") is not None]
    joined = [
        (call, outcome)
        for call in searched
        if (outcome := outcome_in(known, thread=call.get("thread") or "", run_id=call["id"])) is not None
    ]
    values = np.array([call["value"] for call, _ in joined], dtype=np.float64)
    observed = np.array([outcome for _, outcome in joined], dtype=np.float64)
    groups = np.unique([call["key"] for call, _ in joined], return_inverse=True)[1]
    ranking = rank(values, observed, groups) if joined else None
    failures = _failures(calls)
    verdict, why, n_more = judge(ranking, observed)
    return ShadowReport(
        verdict=verdict,
        why=why,
        n_more=n_more,
        ranking=ranking,
        bias=float(np.mean(values - observed)) if joined else math.nan,
        bins=tuple(reliability(values, observed, groups, N_BINS)) if joined else (),
        counts=records.counters("counts"),
        n_searched=len(searched),
        n_failed=sum(n for _, n in failures),
        failures=tuple(failures[:3]),
        n_outcomes=len(joined),
        differs=mean_of([call["differs"] for call in searched]),
        at_door=mean_of([call["at_door"] for call in searched]),
        served=_cost(searched, ""),
        search=_cost(searched, "search_"),
    )


def judge(ranking: Ranking | None, outcomes: Any) -> tuple[Verdict, str, int | None]:
    """Return the verdict, its reason and the number of further outcomes that it needs."""
    if ranking is None:
        return (
            "not yet",
            f"a ranking needs at least {SMALLEST} good and {SMALLEST} bad outcomes",
            _for_ranking(outcomes),
        )
    if ranking.low > 0.5:
        return "start a canary", f"the critic ranks served answers: AUC {ranking} lies above 1/2", None
    if ranking.high < USELESS:
        return "do not", f"the critic does not rank served answers: AUC {ranking} lies below {USELESS}", None
    return "not yet", f"AUC {ranking} includes both 1/2 and {USELESS}", _until_decided(ranking)


def _until_decided(ranking: Ranking) -> int | None:
    """Return the number of further outcomes after which the interval excludes 1/2 or `USELESS`, at the same AUC."""
    half, distance = (ranking.high - ranking.low) / 2, max(ranking.auc - 0.5, USELESS - ranking.auc)
    return max(1, math.ceil(ranking.n * (half / distance) ** 2) - ranking.n)


def _for_ranking(outcomes: Any) -> int:
    """Return the number of further outcomes until both sides are large enough, at the rate so far."""
    if not len(outcomes):
        return 2 * SMALLEST
    good = int((outcomes > (outcomes.min() + outcomes.max()) / 2).sum())
    fewer = min(good, len(outcomes) - good)
    return max(1, math.ceil(len(outcomes) * SMALLEST / max(fewer, 1)) - len(outcomes))


def _failures(calls: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    causes: dict[str, int] = {}
    for call in calls:
        if call.get("search_failed"):
            causes[call["search_failed"]] = causes.get(call["search_failed"], 0) + 1
    return sorted(causes.items(), key=lambda cause: -cause[1])


def _cost(calls: Sequence[Mapping[str, Any]], of: str) -> Cost:
    dollars = [call[f"{of}dollars"] for call in calls if call.get(f"{of}dollars") is not None]
    return Cost(
        mean_of([call[f"{of}seconds"] for call in calls]),
        mean_of([call[f"{of}tokens"] for call in calls]),
        mean_of(dollars),
    )


def _ratio(search: float, served: float) -> str:
    return f"{search / served:.3g} times" if served else "an unknown multiple of"


def _dollars(cost: Cost) -> str:
    return "unknown dollars" if math.isnan(cost.dollars) else f"${cost.dollars:.4g}"
