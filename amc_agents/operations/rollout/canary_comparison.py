"""Compare the arms of a canary key by key, and watch the newest outcomes of the agent that is switched on.

The key is what is randomised, so it is the unit: it counts once, with the mean outcome of its calls within the window
after its first call, and is never revised. Keys are counted in the order in which they become complete. The newest
outcomes are watched for their level, ranking, calibration and over-optimisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from amc_agents.critics.reliability import Bin, reliability
from amc_agents.operations.importing.logged_runs import outcome_in
from amc_agents.operations.rollout.confidence import Ranking, Z, lift_sequence, mean_of, mean_sequence, n_needed, rank
from amc_agents.types import FloatArray

Verdict = Literal["better", "worse", "not yet"]
ARMS = ("plain", "better")


@dataclass(frozen=True)
class Design:
    """What must not change during a canary, because its intervals depend on it."""

    outcomes: tuple[float, float] = (0.0, 1.0)
    """Smallest and largest possible outcome."""
    window: float = 86_400.0
    """Seconds after a key's first call during which its calls count."""
    alpha: float = 0.05
    """Probability that the interval ever misses the truth."""

    def scaled(self, outcome: float) -> float:
        """Map an outcome to [0, 1]."""
        low, high = self.outcomes
        return (outcome - low) / (high - low)


@dataclass(frozen=True)
class Arm:
    """The calls of one arm."""

    n_calls: int
    n_keys: int
    with_outcome: float
    """Share of the keys whose window has passed that have an outcome; NaN if there are none."""
    n_due: int
    """Number of keys whose window has passed."""
    mean_outcome: float
    """Mean over the counted keys, in the outcome's units; NaN if there are none."""
    n_failed: int
    """Number of calls that raised an error."""
    seconds: tuple[float, float]
    """Median and 95th percentile of a call's duration; NaN without calls."""
    tokens: float
    """Mean tokens of a call; NaN without calls."""
    dollars: float
    """Mean cost of the calls whose cost is known; NaN if it is known for none."""
    n_unpriced: int
    """Number of calls without a known cost."""


@dataclass(frozen=True)
class Comparison:
    """The difference in outcome between the arms."""

    verdict: Verdict
    lift: float
    """Estimate of the mean outcome of `better` minus that of `plain`; NaN without counted keys."""
    low: float
    """Lower end of the confidence sequence."""
    high: float
    """Upper end of the confidence sequence."""
    n_counted: int
    """Number of counted keys."""
    n_more: int | None
    """Estimated number of further keys until the verdict, if the lift stays as estimated; None: unknown, or decided."""
    arms: Mapping[str, Arm]
    warnings: tuple[str, ...] = ()


def complete_units(
    calls: Iterable[Mapping[str, Any]], outcomes: Mapping[str, float], design: Design, now: float
) -> list[tuple[str, dict[str, Any]]]:
    """Return the keys that can be counted, by their first call: (key, {arm, share, outcome in [0, 1]}).

    A key is complete when its window has passed and an outcome of its calls is known. A failed call without an outcome
    has the smallest outcome.
    """
    units = []
    for key, own in _by_key(calls).items():
        first = own[0]
        if not 0.0 < first["share"] < 1.0 or first["started"] + design.window > now:
            continue
        known = [
            outcome
            for call in own
            if call["started"] <= first["started"] + design.window and call["arm"] == first["arm"]
            if (outcome := outcome_of(call, outcomes, design)) is not None
        ]
        if known:
            mean = design.scaled(math.fsum(known) / len(known))
            units.append((key, {"arm": first["arm"], "share": first["share"], "outcome": mean}))
    return units


def outcome_of(call: Mapping[str, Any], outcomes: Mapping[str, float], design: Design) -> float | None:
    """Return the outcome of a call: its own, otherwise its thread's, otherwise the smallest if the call failed."""
    known = outcome_in(outcomes, thread=call.get("thread") or "", run_id=call["id"])
    return design.outcomes[0] if known is None and call.get("failed") else known


def compare_arms(
    counted: Sequence[Mapping[str, Any]],
    calls: Sequence[Mapping[str, Any]],
    outcomes: Mapping[str, float],
    design: Design,
    now: float,
) -> Comparison:
    """Compare the arms.

    Args:
        counted: the counted keys, in the order of counting.
        calls: all calls, by their start.
        outcomes: by the id of a run or thread.
        design: of the canary.
        now: current time in seconds, on the clock of the calls.
    """
    treated = np.array([unit["arm"] == "better" for unit in counted], dtype=np.bool_)
    values = np.array([unit["outcome"] for unit in counted], dtype=np.float64)
    shares = np.array([unit["share"] for unit in counted], dtype=np.float64)
    means = {"plain": values[~treated], "better": values[treated]}
    arms = {arm: _arm(arm, means[arm], calls, outcomes, design, now) for arm in ARMS}
    warnings = _warnings(arms, calls)
    if not counted:
        return Comparison("not yet", math.nan, -math.inf, math.inf, 0, None, arms, warnings)
    sequence = lift_sequence(treated, values, shares, design.alpha)
    lift, low, high = (float(series[-1]) for series in sequence[:3])
    verdict = verdict_of(low, high)
    needed = n_needed(sequence, lift, design.alpha) if verdict == "not yet" and lift else None
    width = design.outcomes[1] - design.outcomes[0]
    return Comparison(
        verdict, width * lift, width * max(low, -1.0), width * min(high, 1.0), len(counted),
        None if needed is None else max(1, needed - len(counted)), arms, warnings,
    )  # fmt: skip


def verdict_of(low: float, high: float) -> Verdict:
    """Return the verdict on a lift, from the ends of its interval."""
    return "better" if low > 0 else "worse" if high < 0 else "not yet"


def _by_key(calls: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    grouped: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        grouped.setdefault(call["key"], []).append(call)
    return grouped


def _arm(
    arm: str,
    counted: FloatArray,
    calls: Sequence[Mapping[str, Any]],
    outcomes: Mapping[str, float],
    design: Design,
    now: float,
) -> Arm:
    keys = {key: own for key, own in _by_key(calls).items() if own[0]["arm"] == arm}
    due = [own for own in keys.values() if own[0]["started"] + design.window <= now]
    known = sum(any(outcome_in(outcomes, thread=call.get("thread") or "", run_id=call["id"]) is not None
                    for call in own) for own in due)  # fmt: skip
    served = [call for call in calls if call["served"] == arm]
    priced = [call["dollars"] for call in served if call.get("dollars") is not None]
    seconds = [call["seconds"] for call in served]
    low, high = design.outcomes
    return Arm(
        n_calls=len(served),
        n_keys=len(keys),
        with_outcome=known / len(due) if due else math.nan,
        n_due=len(due),
        mean_outcome=low + (high - low) * mean_of(counted),
        n_failed=sum(bool(call.get("failed")) for call in served),
        seconds=(float(np.median(seconds)), float(np.percentile(seconds, 95))) if seconds else (math.nan, math.nan),
        tokens=mean_of([call["tokens"] for call in served]),
        dollars=mean_of(priced),
        n_unpriced=len(served) - len(priced),
    )


def _warnings(arms: Mapping[str, Arm], calls: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    warnings = []
    plain, better = arms["plain"], arms["better"]
    if plain.n_due and better.n_due:
        pooled = (plain.with_outcome * plain.n_due + better.with_outcome * better.n_due) / (plain.n_due + better.n_due)
        error = math.sqrt(pooled * (1 - pooled) * (1 / plain.n_due + 1 / better.n_due))
        if abs(plain.with_outcome - better.with_outcome) > 3 * error > 0:
            warnings.append(
                f"outcomes are missing unequally: {better.with_outcome:.0%} of the keys of `better` and "
                f"{plain.with_outcome:.0%} of `plain` have an outcome. If the answer decides whether an outcome "
                "arrives, the interval is wrong: join an outcome for every key, such as 0 where none came"
            )
    keyless = sum(not call.get("sticky", True) for call in calls)
    if keyless:
        warnings.append(f"{keyless} calls had no key: each was randomised on its own")
    return tuple(warnings)


N_BINS = 5
BACKWARDS = 3.5
"""Standard errors by which an AUC must lie below 1/2: the guard looks many times."""


@dataclass(frozen=True)
class Watch:
    """The newest calls that `better` served and whose outcome is known."""

    n: int
    """Their number."""
    block: int
    """Number of the block that they belong to; blocks do not overlap."""
    mean_outcome: float
    """Mean outcome of their keys; NaN without calls."""
    high: float
    """Upper end of its confidence sequence; each block has its own share of alpha."""
    ranking: Ranking | None
    """How the critic's values rank them; None: no values, or too few outcomes."""
    bias: float
    """Mean value minus mean outcome; NaN without values. The best of N looks better than it is, the more so the larger
    N."""
    bins: tuple[Bin, ...] = ()
    """Outcome by rising value."""
    by_size: tuple[tuple[int, int, float, float], ...] = ()
    """(N, calls, mean value, mean outcome) by number of particles."""
    alarm: str | None = None
    """Why the plain agent should answer; None: no reason."""
    warnings: tuple[str, ...] = ()


def watch(
    calls: Sequence[Mapping[str, Any]],
    outcomes: Mapping[str, float],
    design: Design,
    size: int,
    floor: float | None,
) -> Watch:
    """Examine the newest block of calls.

    Args:
        calls: all calls, by their start.
        outcomes: by the id of a run or thread.
        design: of the canary.
        size: number of calls of a block.
        floor: smallest acceptable mean outcome; None: no bound.
    """
    served = [
        (call, outcome)
        for call in calls
        if call["served"] == "better" and (outcome := outcome_of(call, outcomes, design)) is not None
    ]
    if not served:
        return Watch(0, 0, math.nan, math.inf, None, math.nan)
    block = (len(served) - 1) // size
    newest = served[block * size :]
    observed = np.array([outcome for _, outcome in newest])
    mean, high = _level(newest, design, design.alpha / ((block + 1) * (block + 2)))
    values = np.array([np.nan if call.get("value") is None else call["value"] for call, _ in newest], dtype=np.float64)
    known = np.isfinite(values)
    groups = np.unique([call["key"] for call, _ in newest], return_inverse=True)[1]
    ranking = rank(values[known], observed[known], groups[known]) if known.any() else None
    bins = tuple(reliability(values[known], observed[known], groups[known], N_BINS)) if known.any() else ()
    return Watch(
        n=len(newest),
        block=block + 1,
        mean_outcome=mean,
        high=high,
        ranking=ranking,
        bias=float(np.mean(values[known] - observed[known])) if known.any() else math.nan,
        bins=bins,
        by_size=_by_size(newest, values, observed),
        alarm=_alarm(high, floor, ranking),
        warnings=_calibration_warnings(bins),
    )


def _level(newest: Sequence[tuple[Mapping[str, Any], float]], design: Design, alpha: float) -> tuple[float, float]:
    """Return the mean outcome of the keys, and the upper end of its sequence."""
    by_key: dict[str, list[float]] = {}
    for call, outcome in newest:
        by_key.setdefault(call["key"], []).append(design.scaled(outcome))
    # A one-sided bound of level alpha is half of a two-sided interval.
    sequence = mean_sequence(np.array([math.fsum(own) / len(own) for own in by_key.values()]), 2 * alpha)
    low, high = design.outcomes
    return low + (high - low) * float(sequence.estimate[-1]), low + (high - low) * float(sequence.high[-1])


def _by_size(
    newest: Sequence[tuple[Mapping[str, Any], float]], values: FloatArray, observed: FloatArray
) -> tuple[tuple[int, int, float, float], ...]:
    sizes = np.array([call.get("n_particles") or 0 for call, _ in newest])
    rows = []
    for size in np.unique(sizes[sizes > 0]):
        rows.append((int(size), int((sizes == size).sum()), float(np.mean(values[sizes == size])),
                     float(np.mean(observed[sizes == size]))))  # fmt: skip
    return tuple(rows)


def _alarm(high: float, floor: float | None, ranking: Ranking | None) -> str | None:
    if floor is not None and high < floor:
        return f"the mean outcome of the newest calls is below {high:.3f}, and the bound is {floor:.3f}"
    if ranking is not None and ranking.auc + BACKWARDS / Z * (ranking.high - ranking.auc) < 0.5:
        return f"the critic ranks the newest outcomes backwards: AUC {ranking}"
    return None


def _calibration_warnings(bins: Sequence[Bin]) -> tuple[str, ...]:
    """Warn where the answers with the highest values are worse than those below: the signature of over-optimisation."""
    if len(bins) < 3:
        return ()
    last, before = bins[-1], max(bins[:-1], key=lambda bin: bin.observed)
    error = math.hypot(last.standard_error, before.standard_error)
    if before.observed - last.observed > 2 * error:
        return (
            f"over-optimisation: answers with the highest values ({last.predicted:.3g}) have a mean outcome of "
            f"{last.observed:.3f}, those with values about {before.predicted:.3g} have {before.observed:.3f}. Use "
            "fewer particles, or train the critic on the newest outcomes",
        )
    return ()
