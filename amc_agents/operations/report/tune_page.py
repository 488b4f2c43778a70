"""The page of a tuning (`amc tune`): the chosen settings, and every setting that was tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amc_agents.bench.methods import REACT
from amc_agents.bench.records import RunResult, read_run_results
from amc_agents.bench.report_tables import score_text, setting_row
from amc_agents.bench.statistics import Estimate, mean_interval
from amc_agents.bench.tuned import Cell, Tuning, read_tuning
from amc_agents.operations.page.markup import (
    Child,
    Html,
    definitions,
    details,
    document,
    element,
    figures,
    join,
    section,
    table,
)
from amc_agents.operations.report.parts import chart, charts, groups, notes_table, short

TUNING = "tuning.json"
_PICKS = {"deployable": "deployable pick", "oracle": "oracle's pick"}
_HEADER = ["method", "temperature", "resampling after", "beta", *_PICKS.values(), "top 5"]


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
                "methods that hide rewards, and the oracle's pick for the others. Below a pick: its 95% interval."),
        section("Score by temperature", charts(*(_by_temperature(tuning, pick) for pick in _PICKS)),
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
    """State the chosen setting of the method with the best pick: the deployable pick if a method has any."""
    pick = next(pick for pick in _PICKS if any(pick in cell.scores for cell in tuning.best.values()))
    scored = [(name, cell) for name, cell in tuning.best.items() if pick in cell.scores and not _alone(cell)]
    scored = scored or [(name, cell) for name, cell in tuning.best.items() if pick in cell.scores]
    name, cell = max(scored, key=lambda item: item[1].scores[pick].mean)
    steps = f", resampling after {', '.join(map(str, cell.tuned.steps))}" if cell.tuned.steps else ""
    score = cell.scores[pick]
    ends = "" if mean_interval(score) is None else f" [{_interval(score)}]"
    return f"{name}: temperature {cell.tuned.temperature:g}{steps}; {_PICKS[pick]} {score.mean:.3f}{ends}."


def _alone(cell: Cell) -> bool:
    """Return whether a setting is of single trajectories."""
    return cell.method == REACT


def _interval(score: Estimate) -> str:
    low, high = mean_interval(score) or (score.mean, score.mean)
    return f"{low:.3f} to {high:.3f}"


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
        *setting, _, top5 = setting_row(cell)
        rows.append([cell.method, *setting, *(_pick_cell(cell.scores.get(pick)) for pick in _PICKS), top5])
    return table(_HEADER, rows, "lrlrrrr")


def _pick_cell(score: Estimate | None) -> Child:
    if score is None or mean_interval(score) is None:
        return score_text(score)
    return join([score_text(score), element("span", _interval(score), class_="interval")])


def _by_temperature(tuning: Tuning, pick: str) -> Html | None:
    best: dict[tuple[str, float], Cell] = {}
    for cell in tuning.tried:
        if pick in cell.scores:
            key = (cell.method, cell.tuned.temperature)
            best[key] = max(best.get(key, cell), cell, key=lambda one: one.merit)
    if not best:
        return None
    rows: list[dict[str, Any]] = []
    for (method, temperature), cell in sorted(best.items()):
        score = cell.scores[pick]
        low, high = mean_interval(score) or (score.mean, score.mean)
        rows.append({"method": method, "x": temperature, "mean": score.mean, "low": low, "high": high})
    described = "; ".join(f"{row['method']} at {row['x']:g}: {row['mean']:.3f}" for row in rows)
    spec = groups(rows, list(tuning.best), "temperature", "mean return")
    subtitle = "Mean return on training tasks, with its 95% interval"
    return chart(_PICKS[pick].capitalize(), subtitle, spec, description=described)


def _tried(tuning: Tuning) -> Iterator[Html]:
    for name in tuning.best:
        cells = sorted(
            (cell for cell in tuning.tried if cell.method == name), key=lambda cell: cell.merit, reverse=True
        )
        yield details(f"{name}: {len(cells)} settings, best first", _settings_table(cells))


def _shown(settings: dict[str, Any]) -> list[tuple[Child, Child]]:
    return [(name, str(value)) for name, value in settings.items() if value is not None]
