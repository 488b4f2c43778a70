"""Watch the newest outcomes of an agent that is switched on: level, ranking, calibration and over-optimisation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from amc_agents.critics.reliability import Bin, reliability
from amc_agents.operations.rollout.comparison import Design, outcome_of
from amc_agents.operations.rollout.ranking import Ranking, Z, rank
from amc_agents.operations.rollout.sequence import mean_sequence
from amc_agents.types import FloatArray

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
        warnings=_warnings(bins),
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


def _warnings(bins: Sequence[Bin]) -> tuple[str, ...]:
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
