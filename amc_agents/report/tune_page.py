"""The page of a tuning (`amc tune`): the chosen settings, and every setting that was tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amc_agents.bench.records import RunResult, read_run_results
from amc_agents.bench.report_tables import setting_row
from amc_agents.bench.statistics import mean_interval
from amc_agents.bench.tuning import Cell, Tuning, read_tuning
from amc_agents.page.document import document, figures, section
from amc_agents.page.markup import Child, Html, definitions, details, element, join, table
from amc_agents.report.charts import curves
from amc_agents.report.notes import notes_table
from amc_agents.report.numbers import short
from amc_agents.report.plotting import chart, charts

TUNING = "tuning.json"
_HEADER = ["method", "temperature", "resampling after", "beta", "pick", "95% interval", "top 5"]


def tune_page(path: Path, library: str) -> str:
    """Build the page of a tuning's folder.

    Args:
        path: the folder.
        library: the script that draws charts.
    """
    tuning, about = read_tuning(path / TUNING)
    settings = about["settings"]
    records = read_run_results(path / "runs") if (path / "runs").is_dir() else []
    best = next(iter(tuning.best.values()))
    summary = (
        f"{len(tuning.tried)} settings were tried on {best.pick.tasks} training tasks, with {best.pick.seeds} seed(s). "
        "A chosen setting is the best of several on the same tasks, so its score here is optimistic: compare on test "
        "tasks with amc bench --tuned."
    )
    sections = [
        figures(_figures(tuning, records)),
        section("Chosen settings", _settings_table(list(tuning.best.values())),
                note="The best average of pick and top 5 on training tasks. The pick is the deployable pick for "
                "methods that hide rewards, and the oracle's pick for the others."),
        section("Score by temperature", charts(_by_temperature(tuning)),
                note="At each temperature, the setting with the best average of pick and top 5."),
        section("All settings", *_tried(tuning)),
        section("Failures and notes", notes_table(records, {})),
        section("Settings of the command", definitions(_shown(settings))),
    ]  # fmt: skip
    return document(
        f"Tuning: {path.name}",
        headline(tuning),
        sections,
        kicker=f"Tuning in the world {settings.get('world', '?')} · {path.name}",
        summary=summary,
        footer=join(["Made by amc-agents from ", element("code", about["command"]),
                     ". This page loads nothing from a network. Charts: Vega-Embed (BSD-3-Clause)."]),
        library=library,
    )  # fmt: skip


def headline(tuning: Tuning) -> str:
    """State the chosen setting of the best method."""
    name, cell = max(tuning.best.items(), key=lambda item: item[1].merit)
    steps = f", resampling after {', '.join(map(str, cell.tuned.steps))}" if cell.tuned.steps else ""
    return f"{name} does best at temperature {cell.tuned.temperature:g}{steps}: pick {cell.pick.mean:.3f}{_ends(cell)}."


def _ends(cell: Cell) -> str:
    ends = mean_interval(cell.pick)
    return "" if ends is None else f" [{ends[0]:.3f}, {ends[1]:.3f}]"


def _figures(tuning: Tuning, records: list[RunResult]) -> Iterator[tuple[str, Child]]:
    yield "methods", len(tuning.best)
    yield "settings tried", len(tuning.tried)
    yield "training tasks", max(cell.pick.tasks for cell in tuning.tried)
    if records:
        yield "runs", f"{len(records):,}"
        yield "model calls", short(sum(record.cost.policy_calls for record in records))
        yield "tokens", short(sum(record.cost.tokens for record in records))


def _settings_table(cells: list[Cell]) -> Html:
    rows: list[list[Child]] = []
    for cell in cells:
        temperature, steps, beta, pick, top5 = setting_row(cell)
        rows.append([cell.method, temperature, steps, beta, pick, _ends(cell).strip(" []").replace(", ", " to "), top5])
    return table(_HEADER, rows, "lrlrrrr")


def _by_temperature(tuning: Tuning) -> Html:
    best: dict[tuple[str, float], Cell] = {}
    for cell in tuning.tried:
        key = (cell.method, cell.tuned.temperature)
        best[key] = max(best.get(key, cell), cell, key=lambda one: one.merit)
    rows: list[dict[str, Any]] = []
    for (method, temperature), cell in sorted(best.items()):
        low, high = mean_interval(cell.pick) or (cell.pick.mean, cell.pick.mean)
        rows.append({"method": method, "x": temperature, "mean": cell.pick.mean, "low": low, "high": high})
    described = "; ".join(f"{row['method']} at {row['x']:g}: {row['mean']:.3f}" for row in rows)
    return chart(
        "Pick", "Mean return on training tasks, with its 95% interval",
        curves(rows, list(tuning.best), "temperature", "mean return"), description=described,
    )  # fmt: skip


def _tried(tuning: Tuning) -> Iterator[Html]:
    for name in tuning.best:
        cells = sorted(
            (cell for cell in tuning.tried if cell.method == name), key=lambda cell: cell.merit, reverse=True
        )
        yield details(f"{name}: {len(cells)} settings, best first", _settings_table(cells))


def _shown(settings: dict[str, Any]) -> list[tuple[Child, Child]]:
    return [(name, str(value)) for name, value in settings.items() if value is not None]
