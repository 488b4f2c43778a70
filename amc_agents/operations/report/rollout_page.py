"""The pages of a shadow and of a canary, from the reports that the command line prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.critics.reliability import Bin
from amc_agents.operations.page.markup import Child, Html, document, element, figures, number_text, section, table
from amc_agents.operations.report.parts import bin_rows, calibration, chart, charts, curves
from amc_agents.operations.rollout import canary_report, shadow_report
from amc_agents.operations.rollout.call_records import FILE, Records
from amc_agents.operations.rollout.canary_comparison import Arm
from amc_agents.operations.rollout.canary_report import CanaryReport
from amc_agents.operations.rollout.confidence import Ranking, lift_sequence
from amc_agents.operations.rollout.shadow_report import ShadowReport

_FOOTER = "Made by amc-agents. This page loads nothing from a network. Charts: Vega-Embed (BSD-3-Clause)."
_MOST_POINTS = 400
"""Points of the confidence sequence that are drawn."""
_START = 10
"""The sequence is drawn from this number of keys on; before, it is as wide as the range of outcomes."""


def rollout_page(path: Path, library: str) -> str:
    """Build the page of a shadow or of a canary. Like `amc canary report`, it stops a canary that is worse.

    Args:
        path: the folder of the rollout.
        library: the script that draws charts.
    """
    kind = _kind_of(path)
    if kind == canary_report.KIND:
        return _canary_page(path, library)
    return _shadow_page(path, library)


def _kind_of(path: Path) -> str:
    import sqlite3

    with sqlite3.connect(f"file:{path / FILE}?mode=ro", uri=True) as connection:
        row = connection.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()
    connection.close()
    return canary_report.KIND if row is not None and f'"{canary_report.KIND}"' in row[0] else shadow_report.KIND


# --- shadow -------------------------------------------------------------------------------------------------------


def _shadow_page(path: Path, library: str) -> str:
    report = shadow_report.read_report(path)
    sections = [
        figures(_shadow_figures(report)),
        _ranking_section(report.ranking, report.bins, report.bias, "the served answers"),
        section("What a canary would cost", _cost_table(report),
                note="Means of a call that was searched for, and of its search."),
        section("Calls", _counts(report.counts)),
        section("Failures", _failures(report.failures, report.lost)),
    ]  # fmt: skip
    more = f" About {report.n_more:,} more outcomes are needed." if report.n_more is not None else ""
    return document(
        f"Shadow: {path.name}",
        f"{report.verdict.capitalize()}: {report.why}.",
        sections,
        kicker=f"Shadow of a served agent · {path.name}",
        summary="Searches in the background of served calls. No lift is claimed: answers that were not served have no "
        f"outcome.{more}",
        footer=_FOOTER,
        library=library,
    )


def _shadow_figures(report: ShadowReport) -> Iterator[tuple[str, Child]]:
    yield "searches", f"{report.n_searched:,}"
    yield "with a known outcome", f"{report.n_outcomes:,}"
    yield "other answers than the served ones", _percent(report.differs)
    yield "ended before a commit call or a question", _percent(report.at_door)
    yield "failed searches", f"{report.n_failed:,}"


def _cost_table(report: ShadowReport) -> Html:
    rows: list[list[Child]] = [
        [name, number_text(cost.seconds), _count(cost.tokens), _dollars(cost.dollars)]
        for name, cost in (("served answer", report.served), ("search", report.search))
    ]
    return table(["", "seconds", "tokens", "dollars"], rows, "lrrr")


def _counts(counts: Mapping[str, int]) -> Html:
    rows: list[list[Child]] = [[name.replace("_", " "), f"{n:,}"] for name, n in sorted(counts.items())]
    return table(["calls", "number"], rows, "lr") if rows else element("p", "No call was counted.")


def _failures(failures: Sequence[tuple[str, int]], lost: int) -> Html:
    rows: list[list[Child]] = [[f"{n:,}", cause] for cause, n in failures]
    if lost:
        rows.append([f"{lost:,}", "records were lost"])
    return table(["number", "cause"], rows, "rl") if rows else element("p", "No search failed.")


# --- canary -------------------------------------------------------------------------------------------------------


def _canary_page(path: Path, library: str) -> str:
    records = Records(path, canary_report.KIND, must_exist=True)
    try:
        report = canary_report.read_report(records)
        sequence = _sequence(records)
    finally:
        records.close()
    warnings, watched = [*report.comparison.warnings, *report.newest.warnings], report.newest
    newest = f"the newest {watched.n:,} outcomes of the better arm"
    sections = [
        figures(_canary_figures(report)),
        section("The lift so far", _sequence_chart(sequence),
                note="Outcome of the better arm minus outcome of the plain arm. The interval holds at all times, "
                "however often the report is read."),
        section("The arms", _arms(report.comparison.arms),
                note="Cost and latency of the calls, beside the mean outcome of the counted keys."),
        _ranking_section(watched.ranking, watched.bins, watched.bias, newest),
        _by_size(report),
        section("Warnings", element("ul", *(element("li", text) for text in warnings)))
        if warnings else None,
    ]  # fmt: skip
    stopped = f" Stopped: the plain agent answers every call, because {report.stopped}." if report.stopped else ""
    return document(
        f"Canary: {path.name}",
        canary_headline(report),
        [each for each in sections if each is not None],
        kicker=f"Canary · {path.name}",
        summary=f"{report.share:.0%} of the keys are served by the better arm.{stopped}",
        footer=_FOOTER,
        library=library,
    )


def canary_headline(report: CanaryReport) -> str:
    """State the verdict of a canary with the interval of the lift."""
    found = report.comparison
    if not found.n_counted:
        return "Not yet: no key is counted yet."
    interval = f"{found.lift:+.3f}, interval [{found.low:+.3f}, {found.high:+.3f}]"
    more = "" if found.n_more is None else f" About {found.n_more:,} more keys would decide."
    return f"{found.verdict.capitalize()}: lift {interval} over {found.n_counted:,} keys.{more}"


def _canary_figures(report: CanaryReport) -> Iterator[tuple[str, Child]]:
    arms = report.comparison.arms
    yield "keys counted", f"{report.comparison.n_counted:,}"
    yield "calls", f"{sum(arm.n_calls for arm in arms.values()):,}"
    for name, arm in arms.items():
        yield f"mean outcome of {name}", number_text(arm.mean_outcome)


def _sequence(records: Records) -> list[dict[str, Any]]:
    """Return the lift and its confidence sequence after each counted key, in the outcome's units."""
    counted, design = records.count([]), canary_report.design_of(records)
    if len(counted) < _START:
        return []
    sequence = lift_sequence(
        np.array([unit["arm"] == "better" for unit in counted]),
        np.array([unit["outcome"] for unit in counted], dtype=np.float64),
        np.array([unit["share"] for unit in counted], dtype=np.float64),
        design.alpha,
    )
    width = design.outcomes[1] - design.outcomes[0]
    chosen = np.unique(np.linspace(_START - 1, len(counted) - 1, _MOST_POINTS).astype(int))
    return [
        {
            "method": "lift", "x": int(i) + 1, "mean": width * float(sequence.estimate[i]),
            "low": width * max(float(sequence.low[i]), -1.0), "high": width * min(float(sequence.high[i]), 1.0),
        }
        for i in chosen
    ]  # fmt: skip


def _sequence_chart(rows: list[dict[str, Any]]) -> Html:
    if not rows:
        return element("p", f"The sequence is drawn from {_START} counted keys on.")
    last = rows[-1]
    described = f"after {last['x']} keys: {last['mean']:+.3f}, between {last['low']:+.3f} and {last['high']:+.3f}"
    spec = curves(rows, ["lift"], "counted keys", "lift", marks=False, level=0.0)
    return charts(chart("Lift", "With its anytime-valid 95% interval", spec, description=described))


def _arms(arms: Mapping[str, Arm]) -> Html:
    rows: list[list[Child]] = [
        [
            name, f"{arm.n_calls:,}", f"{arm.n_keys:,}", number_text(arm.mean_outcome), _percent(arm.with_outcome),
            f"{arm.n_failed:,}", number_text(arm.seconds[0]), number_text(arm.seconds[1]), _count(arm.tokens),
            _dollars(arm.dollars),
        ]
        for name, arm in arms.items()
    ]  # fmt: skip
    header = ["arm", "calls", "keys", "mean outcome", "outcomes known", "failed calls", "median seconds",
              "95th percentile", "tokens", "dollars"]  # fmt: skip
    return table(header, rows, "l" + "r" * 9)


def _by_size(report: CanaryReport) -> Html | None:
    rows: list[list[Child]] = [
        [size, number_text(value), number_text(outcome), f"{n:,}"] for size, n, value, outcome in report.newest.by_size
    ]
    if not rows:
        return None
    return section(
        "Over-optimisation", table(["N", "mean value", "mean outcome", "answers"], rows, "rrrr"),
        note="The best of N looks better than it is, the more so the larger N.",
    )  # fmt: skip


# --- both ---------------------------------------------------------------------------------------------------------


def _ranking_section(ranking: Ranking | None, bins: Sequence[Bin], bias: float, answers: str) -> Html:
    if ranking is None:
        known: Child = f"Too few good and bad outcomes of {answers} to rank them."
    else:
        known = f"AUC {ranking} (0.5 is chance) over {ranking.n:,} answers."
    drawn = None
    if bins:
        side = "above" if bias > 0 else "below"
        caption = f"Values are {abs(bias):.3f} {side} the outcomes on average; on the dashed line, values are right"
        spec = calibration(bin_rows(bins, "critic"), ["critic"])
        drawn = charts(chart("Calibration", caption, spec, description=caption))
    return section("Does the critic know?", element("p", known), drawn, note=f"Values against outcomes of {answers}.")


def _percent(share: float) -> str:
    return "unknown" if math.isnan(share) else f"{share:.0%}"


def _count(tokens: float) -> str:
    return "unknown" if math.isnan(tokens) else f"{tokens:,.0f}"


def _dollars(dollars: float) -> str:
    return "unknown" if math.isnan(dollars) else f"{dollars:.4g}"
