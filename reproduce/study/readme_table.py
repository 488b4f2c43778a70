"""Write the README's table of the study, five rows of results.json: `python reproduce/study/readme_table.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amc_agents.markdown import table
from summary import AMC, BEST, interval_of, share

RESULTS = Path("docs/results/study")
ROWS = (
    ("12 to 16 optimal steps", "hot"),
    ("12 to 16 optimal steps", "tuned"),
    ("12 to 16 optimal steps, another policy", "tuned"),
    ("8 to 11 optimal steps", "tuned"),
    ("Official TextCraft, renamed", "tuned"),
)
TEMPERATURES = {"hot": "1", "tuned": "tuned"}
HEADINGS = ("held-out tasks", "temperature", "Best-of-15", "AMC", "difference at equal tokens", "mean particle")


def readme_table(results: Mapping[str, Any]) -> str:
    """Format the table: success of the best trajectory, and two paired differences between AMC and independent runs."""
    rows = []
    for title, regime in ROWS:
        world = results[title]
        best, amc = (world["scores"][f"{regime}-{name}"]["oracle"] for name in (BEST, AMC))
        budget = next(row for row in world["budget"] if row["regime"] == regime and row["method"] == AMC)
        mean = next(
            row
            for row in world["differences"]
            if (row["a"], row["b"], row["metric"]) == (f"{regime}-{AMC}", f"{regime}-{BEST}", "mean")
        )
        label = f"{title}, {amc['tasks']} x {amc['seeds']} seed{'s' if amc['seeds'] > 1 else ''}"
        rows.append(
            [label, TEMPERATURES[regime], share(best), share(amc), interval_of(budget["oracle"]), interval_of(mean)]
        )
    return table(HEADINGS, rows, "llrrrr") + "\n"


if __name__ == "__main__":
    results = json.loads((RESULTS / "results.json").read_text(encoding="utf-8"))
    (RESULTS / "readme.md").write_text(readme_table(results), encoding="utf-8")
