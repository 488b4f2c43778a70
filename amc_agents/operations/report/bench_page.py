"""The page of a comparison (`amc bench`, `amc demo`): scores, differences, cost, the critic, one run, failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amc_agents.bench.records import METRICS, RunResult, read_run_results
from amc_agents.bench.report import FinalValues, Mean, MethodResult, PairedDifference, Results, final_values, summarise
from amc_agents.bench.report_tables import (
    HEADINGS,
    SHOWN,
    caption,
    deployment_note,
    deployment_rows,
    failed_cells,
    failure_note,
    labelled_differences,
    rival_note,
    rows_of,
    score_text,
    used_costs,
    used_metrics,
)
from amc_agents.bench.results_folder import SETTINGS
from amc_agents.bench.run_files import open_failures
from amc_agents.bench.statistics import HasStandardError, mean_interval
from amc_agents.errors import CheckpointError
from amc_agents.files import read_json_object
from amc_agents.operations.page.family_tree import genealogy
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
from amc_agents.operations.page.run_page import headline as run_headline
from amc_agents.operations.page.run_view import read_run
from amc_agents.operations.report.parts import (
    Dot,
    against_cost,
    bin_rows,
    calibration,
    chart,
    charts,
    curves,
    dots,
    notes_table,
    short,
)
from amc_agents.run import RUN_FILE

RESULTS = "results.json"
_PICKS = {
    "deployable": "Deployable pick",
    "oracle": "Oracle's pick",
}
"""The two picks, which are never drawn in the same chart: the oracle's needs rewards that nobody has in production."""
_PICK_NOTES = {
    "deployable": "Return of the answer that the method picks itself, without seeing a reward",
    "oracle": "Return of the best particle: an upper bound that only an observer of the rewards reaches",
}
_CALIBRATION = "Mean return of trajectories with similar values; on the dashed line, values are right"
_RANKING = "Mean return of the k trajectories with the highest values: flat if the critic does not rank"
_MOST_ROWS = 2_000
"""Rows of the table of tasks."""


@dataclass(frozen=True)
class _StoredMethod:
    """A method of a folder, as its settings describe it."""

    name: str
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    def as_plain(self) -> dict[str, Any]:
        return dict(self.settings)


@dataclass(frozen=True)
class BenchFolder:
    """The content of a results folder."""

    path: Path
    results: Results
    records: Sequence[RunResult]
    """Empty if the folder has the summary alone."""
    complete: bool
    """Whether the command that wrote the folder has ended."""

    @classmethod
    def read(cls, path: Path) -> BenchFolder:
        """Read a folder; the summary is computed from its records, as the command does.

        Raises:
            CheckpointError: a file cannot be read, or no run has ended yet.
        """
        saved = Results.load(path / RESULTS) if (path / RESULTS).exists() else None
        records = read_run_results(path)
        if not records:
            if saved is None:
                raise CheckpointError(f"{path} has no results yet: wait until a run has ended")
            return cls(path, saved, [], complete=True)
        stored = read_json_object(path / SETTINGS, remedy="restore the file, or run the comparison again")
        labels = {method.name: method.label for method in saved.methods} if saved else {}
        settings = saved.settings if saved else stored["settings"]
        methods = [_StoredMethod(name, labels.get(name, name), plain) for name, plain in stored["methods"].items()]
        results = summarise(
            records, methods, settings, command=saved.command if saved else "",
            seconds=saved.seconds if saved else None, failures=open_failures(path, [record.key for record in records]),
        )  # fmt: skip
        # A folder of several commands keeps the order of the last one's table.
        order = {name: place for place, name in enumerate(labels)}
        shown = sorted(results.methods, key=lambda method: order.get(method.name, len(order)))
        return cls(path, results.model_copy(update={"methods": shown}), records, complete=saved is not None)

    def of(self, method: str) -> list[RunResult]:
        """Return the records of a method."""
        return [record for record in self.records if record.method == method]

    @property
    def success(self) -> float:
        """Minimum return of a success."""
        return float(self.results.settings.get("success", 1.0))


def bench_page(path: Path, library: str) -> str:
    """Build the page of a results folder.

    Args:
        path: the folder.
        library: the script that draws charts.
    """
    folder = BenchFolder.read(path)
    results = folder.results
    world = results.settings.get("world")
    unfinished = None if folder.complete else "This comparison is not complete: the command has not ended."
    return document(
        f"Comparison: {path.name}",
        headline(results),
        bench_sections(folder),
        kicker="Comparison of methods" + (f" in the world {world}" if world else "") + f" · {path.name}",
        summary=join([caption(results), *([" ", element("strong", unfinished)] if unfinished else [])]),
        footer=join(["Made by amc-agents from ", element("code", results.command or str(path.name)),
                     ". This page loads nothing from a network. Charts: Vega-Embed (BSD-3-Clause)."]),
        library=library,
    )  # fmt: skip


def bench_sections(folder: BenchFolder) -> list[Html]:
    """Build the sections of a comparison's page."""
    results = folder.results
    sections = [
        figures(_figures(folder)),
        section("Scores", score_table(results), _score_charts(results)),
        _differences(results),
        _deployment(results),
        section(
            "Score against cost", _cost_charts(results),
            note="Up and to the left is better. Tokens are those that were computed: cached ones are left out.",
        ),
        _critic(folder),
        _telling_run(folder),
        section("What it cost", _cost_table(results), note="Means per task."),
        section("Failures and notes", _notes(folder)),
        _tasks(folder),
        section("Settings", _settings(results)),
    ]  # fmt: skip
    return [each for each in sections if each is not None]


def headline(results: Results) -> str:
    """State the result in a sentence: the most telling difference, else the best score."""
    difference = _main_difference(results)
    if difference is not None:
        pair, metric, found = difference
        a, b = pair
        size, interval = f"{abs(found.difference):.3f}", f"[{found.low:+.3f}, {found.high:+.3f}]"
        bound = "" if found.metric == "deployable" else " Only an observer of the rewards could pick so."
        if found.low > 0 or found.high < 0:
            better, worse = (a, b) if found.low > 0 else (b, a)
            return f"{better} beats {worse} by {size} on the {metric}, 95% interval {interval}.{bound}"
        result = f"{found.difference:+.3f}, 95% interval {interval}.{bound}"
        return f"{a} and {b} cannot be told apart on the {metric}: {result}"
    for pick, title in _PICKS.items():
        scored = [method for method in results.methods if pick in method.scores]
        if scored:
            best = max(scored, key=lambda method: method.scores[pick].mean)
            return f"{best.label} has the best {title.lower()}: {_with_interval(best.scores[pick])}."
    return "No method has a score."


def score_table(results: Results) -> Html:
    """Show the scores as the command line prints them, with 95% intervals."""
    metrics = used_metrics(results, {metric: METRICS[metric] for metric in SHOWN})
    failed, methods = failed_cells(results), {method.label: method for method in results.methods}
    rows: list[list[Child]] = []
    for label, *cells in rows_of(results, metrics, {}):
        row: list[Child] = [label, *([failed[label]] if failed else [])]
        for metric, cell in zip(metrics, cells, strict=True):
            row.append(cell if cell == "-" else join([cell, _interval(methods[label].scores[metric])]))
        rows.append(row)
    header = ["method", *(["failed runs"] if failed else []), *metrics.values()]
    note = "Below each mean: its 95% interval over tasks (Student's t)."
    return table(header, rows, "l" + "r" * (len(header) - 1), caption=note)


def _interval(mean: Mean) -> Html | None:
    ends = mean_interval(mean)
    return None if ends is None else element("span", f"{ends[0]:.3f} to {ends[1]:.3f}", class_="interval")


def _with_interval(mean: Mean) -> str:
    ends = mean_interval(mean)
    return f"{mean.mean:.3f}" + ("" if ends is None else f" [{ends[0]:.3f}, {ends[1]:.3f}]")


def _main_difference(results: Results) -> tuple[tuple[str, str], str, PairedDifference] | None:
    """Return ((a, b), metric, difference): the best method against its strongest rival, without rewards if possible."""
    methods = {method.name: method for method in results.methods}
    main = labelled_differences(results)
    chosen = [row for row in main if row[2].metric == "deployable"] or main
    if not chosen:
        return None

    def scores(row: tuple[str, str, PairedDifference]) -> tuple[float, float]:
        _, _, pair = row
        return methods[pair.a].scores[pair.metric].mean, methods[pair.b].scores[pair.metric].mean

    _, metric, pair = max(chosen, key=scores)
    return (methods[pair.a].label, methods[pair.b].label), metric, pair


def _figures(folder: BenchFolder) -> Iterator[tuple[str, Child]]:
    means = [score for method in folder.results.methods for score in method.scores.values()]
    yield "tasks", max(mean.tasks for mean in means)
    yield "seeds", max(mean.seeds for mean in means)
    yield "methods", len(folder.results.methods)
    if folder.records:
        yield "runs", f"{len(folder.records):,}"
        yield "model calls", short(sum(record.cost.policy_calls for record in folder.records))
        yield "tokens", short(sum(record.cost.tokens for record in folder.records))
    if folder.results.seconds is not None:
        yield "wall time", f"{folder.results.seconds / 60:.1f} min"


def _score_charts(results: Results) -> Html:
    return charts(*(
        chart(
            title, _PICK_NOTES[pick], dots(points, "mean return, 95% interval"), description=_described(points)
        )
        for pick, title in _PICKS.items()
        if (points := _dots(results, pick))
    ))  # fmt: skip


def _cost_charts(results: Results) -> Html:
    return charts(*(
        chart(
            title, "Mean return with its 95% interval", description=_described(points),
            spec=against_cost(points, _labels(results), "mean return", "tokens per task"),
        )
        for pick, title in _PICKS.items()
        if (points := _dots(results, pick))
    ))  # fmt: skip


def _dots(results: Results, pick: str) -> list[Dot]:
    return [
        Dot(method.label, mean.mean, *_ends(mean), _with_interval(mean), _tokens(method))
        for method in results.methods
        if (mean := method.scores.get(pick)) is not None
    ]  # fmt: skip


def _labels(results: Results) -> list[str]:
    return [method.label for method in results.methods]


def _ends(mean: HasStandardError) -> tuple[float, float]:
    return mean_interval(mean) or (mean.mean, mean.mean)


def _tokens(method: MethodResult) -> float:
    """Tokens per task that were computed."""
    cost = method.cost
    read = cost.policy_input_tokens + cost.critic_tokens + cost.world_model_tokens
    cached = cost.policy_cached_tokens + cost.critic_cached_tokens + cost.world_model_cached_tokens
    return round(read - cached + cost.policy_output_tokens, 1)


def _described(points: Sequence[Dot]) -> str:
    return "; ".join(f"{point.name}: {point.text}" for point in points)


def _differences(results: Results) -> Html | None:
    rows: list[list[Child]] = []
    for pair, metric, found in labelled_differences(results):
        kind = "good" if found.low > 0 else "bad" if found.high < 0 else None
        rows.append([
            pair, metric, element("span", f"{found.difference:+.3f}", class_=kind),
            f"{found.low:+.3f} to {found.high:+.3f}", found.tasks, found.seeds,
        ])  # fmt: skip
    if not rows:
        return None
    header = ["difference", "metric", "mean", "95% interval", "tasks", "seeds"]
    return section(
        "Paired differences", table(header, rows, "llrrrr", caption=rival_note(results) or None),
        note="Each task is compared with itself. Bold: the interval excludes 0.",
    )  # fmt: skip


def _deployment(results: Results) -> Html | None:
    """Show what the decision for or against a method needs, as the command line prints it."""
    rows, note = deployment_rows(results), deployment_note(results)
    if not rows and not note:
        return None
    drawn = table(HEADINGS, rows, "llrrlrrrr") if rows else None
    return section("Worth switching on?", drawn, note=note)


def _critic(folder: BenchFolder) -> Html | None:
    """Show how well values predict and rank returns, for the methods whose values predict the whole return."""
    evaluated = [
        (method, values)
        for method in folder.results.methods
        if (values := final_values(folder.of(method.name), folder.success)) is not None
    ]
    if not evaluated:
        return None
    header = ["method", "AUC within a run", "calibration error", "top 1", "all", "trajectories"]
    rows: list[list[Child]] = []
    for method, values in evaluated:
        area = "-" if values.auc is None else f"{score_text(values.auc)} ({values.auc.tasks} tasks)"
        ends = (score_text(values.best[0]), score_text(values.best[-1]))
        rows.append([method.label, area, f"{values.calibration_error:.3f}", *ends, f"{values.trajectories:,}"])
    names = _labels(folder.results)
    bins = [row for method, values in evaluated for row in bin_rows(values.bins, method.label)]
    drawn = charts(
        chart("Calibration", _CALIBRATION, calibration(bins, names, "mean return"),
              description=_in_words(rows, 2)),
        chart("Ranking", _RANKING, curves(list(_best(evaluated)), names, "k", "mean return"),
              description=_in_words(rows, 1)),
    )  # fmt: skip
    note = (
        "Values of final trajectories against their returns, in runs that saw no reward. AUC: probability that a "
        "success has a higher value than a failure of the same run; 0.5 is chance. Mean ± standard error over tasks."
    )
    return section("Does the critic know?", table(header, rows, "lrrrrr"), drawn, note=note)


def _in_words(rows: Sequence[Sequence[Child]], column: int) -> str:
    return "; ".join(f"{row[0]}: {row[column]}" for row in rows)


def _best(evaluated: Sequence[tuple[MethodResult, FinalValues]]) -> Iterator[dict[str, Any]]:
    for method, values in evaluated:
        for k, mean in enumerate(values.best, start=1):
            low, high = _ends(mean)
            yield {"method": method.label, "x": k, "mean": mean.mean, "low": low, "high": high}


def _telling_run(folder: BenchFolder) -> Html | None:
    path = folder.path / RUN_FILE
    if not path.exists():
        return None
    run = read_run(path)
    return section(
        "One run, step by step", genealogy(run),
        note=join(["An AMC run of task ", run.best["task"]["id"], ". ", run_headline(run),
                   " Each line is a particle; choose a node to read its step."]),
    )  # fmt: skip


def _cost_table(results: Results) -> Html:
    costs = used_costs(results)
    rows = rows_of(results, {}, costs)
    unknown = sum(method.cost.calls_without_usage > 0 for method in results.methods)
    lower = f" {unknown} methods have calls without reported usage: their tokens are lower bounds." if unknown else ""
    note = f"Seconds while runs share the machine. Critic tokens without cached ones.{lower}"
    return table(["method", *costs], rows, "l" + "r" * len(costs), caption=note)


def _notes(folder: BenchFolder) -> Html:
    failures = failure_note(folder.results)
    if folder.records:
        labels = {method.name: method.label for method in folder.results.methods}
        return join([element("p", failures) if failures else None, notes_table(folder.records, labels)])
    rows: list[list[Child]] = [[method.label, note] for method in folder.results.methods for note in method.notes]
    return table(["method", "note"], rows, "ll") if rows else element("p", "The summary has no notes.")


def _tasks(folder: BenchFolder) -> Html | None:
    """List the picks of every task, to find those where methods differ."""
    if not folder.records:
        return None
    blocks = []
    for pick, title in _PICKS.items():
        methods = [method for method in folder.results.methods if pick in method.scores]
        cells: dict[str, dict[str, list[float]]] = {}
        for record in folder.records:
            score = getattr(record.scores, pick)
            if score is not None:
                cells.setdefault(record.task, {}).setdefault(record.method, []).append(score)
        rows: list[list[Child]] = [
            [task, *(_mean_cell(scores.get(method.name)) for method in methods)]
            for task, scores in list(sorted(cells.items()))[:_MOST_ROWS]
        ]
        if rows:
            header = ["task", *(method.label for method in methods)]
            blocks.append(details(f"{title} of each task", table(header, rows, "l" + "r" * len(methods))))
    return section("Tasks", *blocks, note="Mean over seeds.")


def _mean_cell(scores: Sequence[float] | None) -> str:
    return "-" if not scores else f"{sum(scores) / len(scores):.3g}"


def _settings(results: Results) -> Html:
    shared = definitions([(name, str(value)) for name, value in results.settings.items() if value is not None])
    each = [
        details(method.label, definitions([(name, str(value)) for name, value in method.settings.items()]))
        for method in results.methods
    ]
    return join([shared, *each])
