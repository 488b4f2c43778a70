"""The report of a canary: the comparison of its arms, the newest outcomes, and what it decided."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.operations.rollout.call_records import Records
from amc_agents.operations.rollout.canary_comparison import (
    Arm,
    Comparison,
    Design,
    Watch,
    compare_arms,
    complete_units,
    watch,
)
from amc_agents.operations.rollout.confidence import mean_sequence
from amc_agents.types import FloatArray, plain

KIND = "canary"


@dataclass(frozen=True)
class CanaryReport:
    """What is known of a canary now. `print` shows it."""

    comparison: Comparison
    newest: Watch
    share: float
    """Share of the keys that `better` serves."""
    floor: float | None
    """Smallest acceptable mean outcome of `better`; None: not known yet."""
    stopped: str | None
    """Why the plain agent answers all calls; None: the canary runs."""
    dropped: int = 0
    """Number of records that this process could not write."""

    @property
    def verdict(self) -> str:
        """Return "better", "worse" or "not yet"."""
        return self.comparison.verdict

    def as_plain(self) -> dict[str, Any]:
        """Convert the report to JSON-compatible values."""
        values: dict[str, Any] = plain(asdict(self))
        return {"verdict": self.verdict, **values}

    def __str__(self) -> str:
        """The report in lines of text."""
        return "\n".join([*self._conclusion(), *_arms(self.comparison), *_newest(self.newest, self.floor),
                          *(f"warning: {text}" for text in (*self.comparison.warnings, *self.newest.warnings)),
                          *([f"warning: {self.dropped} records were lost"] if self.dropped else [])])  # fmt: skip

    def _conclusion(self) -> list[str]:
        found = self.comparison
        lines = [f"verdict: {found.verdict}"]
        if found.n_counted:
            lines.append(
                f"lift {found.lift:+.3f}, anytime-valid 95% interval [{found.low:+.3f}, {found.high:+.3f}], "
                f"{found.n_counted:,} keys counted"
            )
        else:
            lines.append("no key is counted yet: a key counts when its window has passed and its outcome has joined")
        if found.verdict == "not yet" and found.n_more is not None:
            lines.append(f"about {found.n_more:,} more keys are needed if the lift stays as estimated")
        if found.verdict == "better" and self.stopped is None and self.share < 1.0:
            lines.append("switch on with a larger share=; a few percent of plain calls keep the comparison alive")
        if self.stopped is not None:
            lines.append(f"stopped: the plain agent answers every call, because {self.stopped}")
        return lines


def read_report(
    folder: str | Path | Records, outcomes: Mapping[str, float] | None = None, *, now: float | None = None
) -> CanaryReport:
    """Evaluate a canary: count its complete keys, compare the arms, and stop it where it is worse.

    Args:
        folder: of the canary.
        outcomes: to join first, by the id of a run or a thread.
        now: time in seconds; None: the current time.
    """
    records = folder if isinstance(folder, Records) else Records(folder, KIND, must_exist=True)
    design = design_of(records)
    if outcomes:
        records.add_outcomes(outcomes, design.outcomes)
    now = time.time() if now is None else now
    calls, known, settings = records.calls(), records.outcomes(), records.fact("settings") or {}
    stopped = records.fact("stopped")
    # After a stop, the keys of `better` are served by `plain` and tell nothing about the difference.
    counted = records.count([] if stopped else complete_units(calls, known, design, now))
    comparison = compare_arms(counted, calls, known, design, now)
    floor = settings.get("floor")
    floor = _plain_level(counted, design) if floor is None else floor
    newest = watch(calls, known, design, settings.get("watch", 200), floor)
    reason = _reason_to_stop(comparison, newest)
    if stopped is None and reason is not None:
        stopped = records.fact_or("stopped", {"why": reason, "at": now})
    return CanaryReport(
        comparison, newest, settings.get("share", math.nan), floor, None if stopped is None else stopped["why"]
    )


def design_of(records: Records) -> Design:
    """Return the design of a canary's records."""
    recorded = records.fact("design") or {}
    return Design(**{**recorded, "outcomes": tuple(recorded.get("outcomes", (0.0, 1.0)))})


def _plain_level(counted: list[dict[str, Any]], design: Design) -> float | None:
    """Return the lower end of the sequence for the plain arm's mean outcome; None: not known."""
    values: FloatArray = np.array([unit["outcome"] for unit in counted if unit["arm"] == "plain"], dtype=np.float64)
    if not len(values):
        return None
    low, high = design.outcomes
    return low + (high - low) * max(0.0, float(mean_sequence(values, design.alpha).low[-1]))


def _reason_to_stop(comparison: Comparison, newest: Watch) -> str | None:
    if comparison.verdict == "worse":
        return f"`better` is worse: lift {comparison.lift:+.3f}, interval up to {comparison.high:+.3f}"
    return newest.alarm


def _arms(comparison: Comparison) -> list[str]:
    lines = [f"{'arm':<8}{'calls':>8}{'keys':>8}{'outcome':>10}{'known':>8}{'failed':>8}{'median s':>10}{'p95 s':>8}"
             f"{'tokens':>10}{'dollars':>10}"]  # fmt: skip
    for name, arm in comparison.arms.items():
        lines.append(
            f"{name:<8}{arm.n_calls:>8,}{arm.n_keys:>8,}{_number(arm.mean_outcome, '.3f'):>10}"
            f"{_number(arm.with_outcome, '.0%'):>8}{arm.n_failed:>8,}{_number(arm.seconds[0], '.3g'):>10}"
            f"{_number(arm.seconds[1], '.3g'):>8}{_number(arm.tokens, ',.0f'):>10}{_dollars(arm):>10}"
        )
    return lines


def _dollars(arm: Arm) -> str:
    return _number(arm.dollars, ".4g") + ("*" if arm.n_unpriced and not math.isnan(arm.dollars) else "")


def _newest(newest: Watch, floor: float | None) -> list[str]:
    if not newest.n:
        return []
    bound = "no bound is known yet" if floor is None else f"bound {floor:.3f}"
    lines = [f"newest {newest.n:,} outcomes of `better`: mean {newest.mean_outcome:.3f} ({bound})"]
    if newest.ranking is not None:
        lines.append(f"  ranking: AUC {newest.ranking}, {newest.ranking.n:,} answers")
    if not math.isnan(newest.bias):
        lines.append(f"  calibration: values are {abs(newest.bias):.3f} {'above' if newest.bias > 0 else 'below'} "
                     "the outcomes on average")  # fmt: skip
        lines += [f"    value {each.predicted:>8.3g}: outcome {each.observed:.3f} ({each.n:,})" for each in newest.bins]
    lines += [f"  N = {size}: value {value:.3g}, outcome {outcome:.3f} ({n:,})"
              for size, n, value, outcome in newest.by_size]  # fmt: skip
    return lines


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)
