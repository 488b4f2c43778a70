"""Write the tables of docs/results/real-runs/README.md from its results.json.

python reproduce/real_runs/report.py docs/results/real-runs
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from amc_agents.markdown import table
from reproduce.pages import write_parts


def figures_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose first column is text."""
    return table(header, rows, "l" + "r" * (len(header) - 1)) + "\n"


def number(value: float | None, digits: int = 3) -> str:
    """Return a figure without the zero before the point; what is unknown is empty."""
    if value is None:
        return ""
    return f"{value:.{digits}f}".replace("0.", ".", 1) if abs(value) < 1 else f"{value:.{digits}f}"


def within(figures: Mapping[str, float], mean: str = "mean", *, signed: bool = False) -> str:
    """Return a mean with its interval."""
    sign = "+" if signed and figures[mean] >= 0 else ""
    return f"{sign}{number(figures[mean])} [{number(figures['low'])}, {number(figures['high'])}]"


def advice(found: Mapping[str, Any]) -> str:
    """Return the best row of each method, per agent."""
    rows = []
    for name, answer in found.items():
        recommended = answer["recommendation"] or {}
        for row in answer["methods"]:
            chosen = (row["name"], row["k"]) == (recommended.get("name"), recommended.get("k"))
            difference = "" if row["name"] == "single" else within(row, "difference", signed=True)
            known = row["name"] if row["deployable"] else f"({row['name']})"
            cells = [known, str(row["k"]), number(row["success"]), difference]
            cells += [number(row[column], 2) for column in ("tokens", "latency")]
            rows.append([name, *(f"**{cell}**" if chosen and cell else cell for cell in cells)])
    return figures_table(["agent", "method", "k", "success", "against one run", "tokens", "latency"], rows)


def critics(found: Mapping[str, Any]) -> str:
    """Return what a critic knows of an agent that it was trained on, or not trained on."""
    rows = []
    for name, sources in found.items():
        for source, figures in sources.items():
            has_siblings = "auc within" in figures
            rows.append([
                name, source, number(figures["auc across"]), within(figures["auc within"]) if has_siblings else "",
                within(figures, "difference", signed=True) if has_siblings else "",
            ])  # fmt: skip
    return figures_table(
        ["runs of", "scored by a critic of", "AUC, all runs", "AUC within tasks", "gain by its pick of all"], rows
    )


def steps(found: Mapping[str, Any]) -> str:
    """Return the critic's AUC among unfinished runs."""
    rows = [
        [name, step, str(auc["tasks"]), within(auc)]
        for name, answer in found.items()
        for step, auc in answer["critic"]["by_step"].items()
        if auc["tasks"] >= 10
    ]
    return figures_table(["agent", "after steps", "tasks", "AUC within tasks"], rows)


def counts(found: Mapping[str, Any]) -> str:
    """Return how well single counts order the finished runs of a task."""
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    rows = [[name, *(within(figures[name]) if name in figures else "" for figures in found.values())] for name in names]
    return figures_table(["count", *found], rows)


def rules(found: Mapping[str, Any]) -> str:
    """Return success of the rules around the race, for each seed of the critic's folds."""
    rows = [
        [name, ", ".join(map(number, figures["success"])), number(sum(figures["tokens"]) / len(figures["tokens"]), 2)]
        for name, figures in found.items()
    ]
    return figures_table(["rule, five runs", "success, three seeds of the critic's folds", "tokens"], rows)


def learning(found: Mapping[str, Any]) -> str:
    """Return what more logged tasks bring."""
    rows = []
    for size, figures in found.items():
        recommended = ", ".join(f"{name} {count}" for name, count in figures["recommended"].items())
        rows.append([
            size, within(figures["critic's auc"]), within(figures["critic's gain"], signed=True), recommended,
            within(figures["gain of what is recommended, without the critic"], signed=True),
        ])  # fmt: skip
    header = ["tasks logged", "critic's AUC", "gain by its pick", "recommended without it, of 20", "gain of that"]
    return figures_table(header, rows)


def halves(found: Mapping[str, Any]) -> str:
    """Return what was recommended on one half, and gained on the other."""
    recommended = ", ".join(f"{name} in {count}" for name, count in found["recommended"].items())
    single, other = number(found["single"]["mean"]), within(found["difference on the other half"], signed=True)
    return (
        f"Of {found['splits']} halves: {recommended}. On the other halves one run reaches {single}, and what was "
        f"recommended changes that by {other} (halves overlap, so this interval is too narrow); the smallest change is "
        f"{found['smallest difference']:+.3f}.\n"
    )


PARTS = {
    "advice": ("advice", advice),
    "critics": ("transfer", critics),
    "steps": ("advice", steps),
    "counts": ("counts", counts),
    "rules": ("rules", rules),
    "learning": ("learning", learning),
    "halves": ("halves", halves),
}
"""Part of the page -> section of the results, and how it is shown."""


def main() -> None:
    """Write the page's tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    results = json.loads((folder / "results.json").read_text())
    write_parts(folder / "README.md", {part: show(results[name]) for part, (name, show) in PARTS.items()})


if __name__ == "__main__":
    main()
