"""Summary table of the study: a row for each world and regime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amc_agents.markdown import table
from reproduce.study.table_rows import PARAMETERS, SAMPLING

BEST = "best-of-15"
AMC = "amc-15"
HEADINGS = (
    "tasks", "sampling", "greedy ReAct", "Best-of-15", "AMC", "pick, equal N", "pick, equal tokens (tries)", "top 5",
    "mean particle", "distinct successes",
)  # fmt: skip
NOTE = (
    f"{PARAMETERS} Intervals are 95%, over tasks and training seeds where there are several seeds (three: Student's t "
    "with few degrees of freedom, so they are wide), else over tasks."
)


def summary_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Format the summary as Markdown. Greedy play has no temperature and is repeated in both regimes."""
    rows = []
    for title, of in results.items():
        for regime, sampling in SAMPLING.items():
            names = "react-greedy", f"{regime}-{BEST}", f"{regime}-{AMC}"
            if any(name not in of["scores"] for name in names[1:]):
                continue
            picks = [of["scores"].get(name, {}).get("oracle") for name in names]
            mine = of["scores"][names[-1]]["oracle"]
            label = f"{title}, {mine['tasks']} x {mine['seeds']} seed{'s' if mine['seeds'] > 1 else ''}"
            equal, top5, mean = (
                _first(of["differences"], a=names[2], b=names[1], metric=metric)
                for metric in ("oracle", "top5", "mean")
            )
            paid = _first(of["budget"], regime=regime, method=AMC)
            tries = "" if paid is None else f" ({tries_of(paid)})"
            holds = _first(of["populations"], regime=regime, method=AMC)
            changes = [
                interval_of(equal), f"{interval_of(paid and paid['oracle'])}{tries}", interval_of(top5),
                interval_of(mean),
                interval_of(holds and holds["change"]),
            ]  # fmt: skip
            rows.append([label, sampling, *(share(pick) for pick in picks), *changes])
    return "\n".join([table(HEADINGS, rows, "ll" + "r" * (len(HEADINGS) - 2)), "", NOTE, ""])


def tries_of(paid: Mapping[str, Any]) -> str:
    """Show the number of tries; if the pool was too small, of how many that the tokens pay for."""
    more = f" of {paid['affordable']:.1f}" if paid["affordable"] > paid["tries"] else ""
    return f"{paid['tries']:.1f}{more}"


def _first(rows: Sequence[Mapping[str, Any]], **matching: str) -> Mapping[str, Any] | None:
    return next((row for row in rows if all(row[key] == value for key, value in matching.items())), None)


def interval_of(paired: Mapping[str, Any] | None) -> str:
    """Format a difference with its 95% interval (over several training seeds too), bold if the interval excludes 0."""
    if paired is None:
        return ""
    crossed = paired["low_crossed"] is not None
    ends = (paired["low_crossed"], paired["high_crossed"]) if crossed else (paired["low"], paired["high"])
    # As printed: an interval that ends at .000 does not exclude 0.
    low, high = (round(end, 3) for end in ends)
    difference = f"{_short(paired['difference'], '+')} [{_short(low)}, {_short(high)}]"
    return f"**{difference}**" if low > 0 or high < 0 else difference


def share(score: Mapping[str, Any] | None) -> str:
    """Format a mean and its standard error; empty for None."""
    return "" if score is None else f"{_short(score['mean'])} ± {_short(score['standard_error'])}"


def _short(number: float, sign: str = "") -> str:
    """Format three digits, without the leading zero."""
    return f"{number:{sign}.3f}".replace("0.", ".", 1) if abs(number) < 0.9995 else f"{number:{sign}.3f}"
