"""The tables of a comparison on a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.table import Table

from amc_agents.bench.report import Results
from amc_agents.bench.report_tables import (
    CostText,
    caption,
    failed_cells,
    labelled_differences,
    rival_note,
    rows_of,
    used_costs,
    used_metrics,
)


def score_table(results: Results, title: str = "") -> Table:
    """Show the main scores with standard errors."""
    headings = {
        "success": "success",
        "oracle": "oracle's\npick",
        "deployable": "deployable\npick",
        "top5": "top 5",
        "mean": "mean\nparticle",
    }
    # Five columns are too wide for a terminal; the Markdown has all of them.
    metrics = dict(list(used_metrics(results, headings).items())[:4])
    return _method_table(results, metrics, {}, title or None, caption(results))


def detail_table(results: Results) -> Table:
    """Show the scores over distinct trajectories, and the costs per task."""
    headings = {"top5_distinct": "top 5\ndistinct", "mean_distinct": "mean\ndistinct"}
    note = "Calls and tokens per task; critic tokens without cached ones; seconds while runs share the machine."
    return _method_table(results, used_metrics(results, headings), used_costs(results), None, note)


def difference_table(results: Results) -> Table | None:
    """Show the main paired differences; None if there are none."""
    differences = labelled_differences(results)
    if not differences:
        return None
    table = narrow_table("paired differences over tasks, with 95% intervals", rival_note(results))
    for heading in ("difference", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("mean", "95% interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    for pair, metric, difference in differences:
        style = "green" if difference.low > 0 else "red" if difference.high < 0 else ""
        interval = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
        table.add_row(pair, metric, f"{difference.difference:+.3f}", interval, style=style)
    return table


def narrow_table(title: str | None, note: str | None) -> Table:
    """Return an empty table that fits four scores with their errors into 80 columns."""
    return Table(
        title=title,
        caption=note,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _method_table(
    results: Results, metrics: Mapping[str, str], costs: Mapping[str, CostText], title: str | None, note: str
) -> Table:
    table = narrow_table(title, note)
    table.add_column("method", no_wrap=True)
    failed = {} if costs else failed_cells(results)
    if failed:
        table.add_column("failed", justify="right", style="red", no_wrap=True)
    for heading in metrics.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in costs:
        table.add_column(heading.replace(" ", "\n"), justify="right", style="dim")
    for label, *cells in rows_of(results, metrics, costs):
        table.add_row(label, *([failed[label]] if failed else []), *cells)
    return table
