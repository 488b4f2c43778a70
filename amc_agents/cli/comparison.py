"""Run a comparison from the command line: a progress bar, then tables, files and pictures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from amc_agents.bench import decision_report, plots
from amc_agents.bench.executors import PROCESSES, SHARED
from amc_agents.bench.methods import AMC
from amc_agents.bench.plan import ComparisonPlan, Plan, run_plan
from amc_agents.bench.records import RunResult
from amc_agents.bench.report import Results, summarise
from amc_agents.bench.report_tables import (
    CostText,
    caption,
    deployment_lines,
    failed_cells,
    failure_note,
    labelled_differences,
    markdown,
    rival_note,
    rows_of,
    used_costs,
    used_metrics,
)
from amc_agents.bench.results_folder import SOFTWARE, read_software
from amc_agents.bench.run_files import causes_of, failed_runs, read_decisions, write_dataset
from amc_agents.bench.runner import run_one
from amc_agents.bench.selection import MethodChoice, PlanT
from amc_agents.cli.shared_options import command_line
from amc_agents.cli.watch import watched
from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import AmcError
from amc_agents.files import replace_file
from amc_agents.population.conclusion import quiet_notes
from amc_agents.training.dataset import pyarrow_or_error


@dataclass(frozen=True)
class Execution:
    """How runs are executed: arguments of `run_plan`."""

    n_workers: int
    n_concurrent: int = 8
    executor: str = PROCESSES
    resume: bool = False


def with_methods(plan: PlanT, choice: MethodChoice, console: Console) -> PlanT:
    """Choose the methods of a plan, and print which of them cannot run."""
    plan, notes = choice.applied_to(plan)
    for note in notes:
        console.print(note)
    return plan


def run_and_report(
    plan: Plan,
    out: Path,
    console: Console,
    title: str,
    execution: Execution,
    *,
    keep_decisions: bool = False,
    keep_trajectories: bool = False,
    watch: bool = False,
) -> Results:
    """Run a plan, print its tables, and write its files.

    Args:
        plan: what to run.
        out: the results folder.
        console: where to print.
        title: the title of tables and pictures begins with it.
        execution: how the runs are executed.
        keep_decisions: store every decision too.
        keep_trajectories: store every trajectory too, and write them as a dataset.
        watch: show the populations of the runs in progress, which are then those of this process.
    """
    if keep_trajectories:
        pyarrow_or_error()  # before anything is played
    started = time.perf_counter()
    records = run_with_bar(
        plan, out, console, "runs", execution,
        keep_decisions=keep_decisions, keep_trajectories=keep_trajectories, watch=watch,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    comparison = plan.comparison()
    failures = failed_runs(out, comparison.items(), [record.key for record in records])
    if not records:
        raise AmcError(
            f"all {len(failures)} runs failed: {'; '.join(causes_of(failure.error for failure in failures))}"
        )
    results = summarise(
        records,
        plan.methods,
        comparison.settings,
        command=command_line(),
        # Earlier or other calls have played some of the runs.
        seconds=None if execution.resume or execution.executor == SHARED else seconds,
        failures=failures,
    )
    title = f"{title}{plan.where}"
    _print_tables(results, title, console)
    files = [
        results.save(out / "results.json"),
        _write(out / "results.md", markdown(results)),
        plots.method_scores(results, out / "scores.png", title=title),
        # Repeating a run of the user's own agent would cost what it costs.
        *(_write_telling_run(plan, records, out) if isinstance(plan, ComparisonPlan) else []),
        _write_decision_report(plan, out),
        write_dataset(out, [item.key for item in comparison.items()]) if keep_trajectories else None,
    ]
    console.print(f"\n{len(records)} runs in {seconds:.0f} s. Written:")
    print_files(files, console)
    console.print(f"Look at the results: amc report {out}", soft_wrap=True)
    for line in deployment_lines(results):
        console.print(line, soft_wrap=True)
    if failures:
        console.print(failure_note(results), soft_wrap=True)
    if len(read_software(out)) > 1:
        console.print(f"Different versions of the software have worked on these results: see {out / SOFTWARE}")
    return results


def run_with_bar(
    plan: Plan,
    out: Path,
    console: Console,
    title: str,
    execution: Execution,
    *,
    keep_decisions: bool = False,
    keep_trajectories: bool = False,
    watch: bool = False,
) -> list[RunResult]:
    """Execute the runs of a plan with a progress bar."""
    bar = progress_bar(console)
    with watched(console, above=bar, several=True) if watch else bar:
        line = bar.add_task(title, total=plan.n_runs)
        return run_plan(
            plan,
            out,
            progress=lambda done: bar.update(line, completed=done),
            keep_decisions=keep_decisions,
            keep_trajectories=keep_trajectories,
            **asdict(execution),
        )


def progress_bar(console: Console) -> Progress:
    """Return a bar that counts finished items."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console)


def print_files(files: list[Path | None], console: Console) -> None:
    """Print the files that were written, one a line."""
    for file in files:
        if file is not None:
            console.print(f"  {file}", highlight=False)


def _print_tables(results: Results, title: str, console: Console) -> None:
    console.print(score_table(results, title))
    console.print(detail_table(results))
    differences = difference_table(results)
    if differences is not None:
        console.print(differences)


def _write(path: Path, text: str) -> Path:
    replace_file(path, text)
    return path


def _write_decision_report(plan: Plan, out: Path) -> Path | None:
    """Report on the stored decisions; None if no decision used a critic."""
    keys = {(task.id, seed) for task in plan.tasks() for seed in plan.seeds}
    runs = [run for run in read_decisions(out) if (run.task, run.seed) in keys]
    text = decision_report.markdown(runs, {method.name: method.label for method in plan.methods})
    return _write(out / "decisions.md", text) if text else None


def _write_telling_run(plan: ComparisonPlan, records: list[RunResult], out: Path) -> list[Path | None]:
    """Repeat the most telling AMC run with its seed, store it, and draw it if it resampled in a single round."""
    amc_records = [record for record in records if record.method == AMC]
    if not amc_records:
        return []
    # A run in which some particles succeed shows the effect of resampling.
    record = max(amc_records, key=lambda record: (record.scores.success, -abs(record.scores.mean - 0.4)))
    comparison = plan.comparison()
    task = next(task for task in comparison.tasks if task.id == record.task)
    method = next(method for method in plan.methods if method.name == AMC)
    with quiet_notes():
        _, run = run_in_background(run_one(comparison, record.seed, task, method), n_workers=1)
    stored = run.save(out)
    points = [point.step for point in run.history]
    several_rounds = points != sorted(points)
    if several_rounds or not any(point.ancestors is not None for point in run.history):
        return [stored]
    title = f"AMC at work: {getattr(task.payload, 'goal', task.id)}"
    return [stored, plots.genealogy(run, out / "genealogy.png", title=title)]


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
