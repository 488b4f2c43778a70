"""The study in one table: a line for each world and regime. The README has it as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amc_agents.markdown import table
from table_rows import PARAMETERS, SAMPLING

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


def summary_table(told: Mapping[str, Mapping[str, Any]]) -> str:
    """As Markdown. Greedy play knows no temperature: it is repeated beside both."""
    rows = []
    for title, of in told.items():
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
            tries = "" if paid is None else f" ({paid['tries']:.1f})"
            holds = _first(of["populations"], regime=regime, method=AMC)
            changes = [
                interval_of(equal), f"{interval_of(paid and paid['oracle'])}{tries}", interval_of(top5),
                interval_of(mean),
                interval_of(holds and holds["change"]),
            ]  # fmt: skip
            rows.append([label, sampling, *(share(pick) for pick in picks), *changes])
    return "\n".join([table(HEADINGS, rows, "ll" + "r" * (len(HEADINGS) - 2)), "", NOTE, ""])


def _first(rows: Sequence[Mapping[str, Any]], **wanted: str) -> Mapping[str, Any] | None:
    return next((one for one in rows if all(one[key] == value for key, value in wanted.items())), None)


def interval_of(found: Mapping[str, Any] | None) -> str:
    """A difference with its 95% interval (over training seeds too if there are several), bold if that excludes 0."""
    if found is None:
        return ""
    crossed = found["low_crossed"] is not None
    ends = (found["low_crossed"], found["high_crossed"]) if crossed else (found["low"], found["high"])
    # As printed: an interval that ends at .000 does not exclude 0.
    low, high = (round(end, 3) for end in ends)
    difference = f"{_short(found['difference'], '+')} [{_short(low)}, {_short(high)}]"
    return f"**{difference}**" if low > 0 or high < 0 else difference


def share(score: Mapping[str, Any] | None) -> str:
    """A mean and its standard error; empty for None."""
    return "" if score is None else f"{_short(score['mean'])} ± {_short(score['standard_error'])}"


def _short(number: float, sign: str = "") -> str:
    """Three digits, without the zero that every share begins with."""
    return f"{number:{sign}.3f}".replace("0.", ".", 1) if abs(number) < 0.9995 else f"{number:{sign}.3f}"
