"""The study in one table: a line for each world and regime. The README has it as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from table_rows import SAMPLING, row

BEST = "best-of-15"
CHANGES = (("amc-15", "oracle"), ("amc-hidden-15", "deployable"), ("amc-15", "top5"), ("amc-15", "mean"))
"""Of AMC against Best-of-15: whose, and in what."""
HEADINGS = (
    "tasks", "sampling", "greedy ReAct", "Best-of-15", "AMC", "oracle's pick", "deployable pick", "top 5",
    "mean particle",
)  # fmt: skip


def summary_table(told: Mapping[str, Mapping[str, Any]]) -> str:
    """As Markdown. Greedy play knows no temperature: it is repeated beside both."""
    lines = [row(list(HEADINGS)), row(["---", "---", *["---:"] * (len(HEADINGS) - 2)])]
    for title, of in told.items():
        for regime, sampling in SAMPLING.items():
            names = "react-greedy", f"{regime}-{BEST}", f"{regime}-amc-15"
            if any(name not in of["scores"] for name in names[1:]):
                continue
            picks = [of["scores"].get(name, {}).get("oracle") for name in names]
            mine = of["scores"][names[-1]]["oracle"]
            label = f"{title}, {mine['tasks']} x {mine['seeds']} seed{'s' if mine['seeds'] > 1 else ''}"
            changes = [_change(of["differences"], f"{regime}-{name}", f"{regime}-{BEST}", m) for name, m in CHANGES]
            lines.append(row([label, sampling, *(_score(pick) for pick in picks), *changes]))
    return "\n".join([*lines, ""])


def _change(differences: list[Mapping[str, Any]], a: str, b: str, metric: str) -> str:
    """A difference with its interval over tasks; heavy where that excludes 0."""
    found = next((one for one in differences if (one["a"], one["b"], one["metric"]) == (a, b, metric)), None)
    if found is None:
        return ""
    difference = f"{_short(found['difference'], '+')} [{_short(found['low'])}, {_short(found['high'])}]"
    return f"**{difference}**" if found["low"] > 0 or found["high"] < 0 else difference


def _score(score: Mapping[str, Any] | None) -> str:
    return "" if score is None else f"{_short(score['mean'])} ± {_short(score['standard_error'])}"


def _short(number: float, sign: str = "") -> str:
    """Three digits, without the zero that every share begins with."""
    return f"{number:{sign}.3f}".replace("0.", ".", 1) if abs(number) < 0.9995 else f"{number:{sign}.3f}"
