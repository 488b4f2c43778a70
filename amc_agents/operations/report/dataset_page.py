"""The page of a dataset (`amc import`, `amc collect`): outcomes, lengths, what was refused, and some trajectories."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from amc_agents.bench.statistics import estimate, mean_interval
from amc_agents.critics.reliability import calibration_error, reliability
from amc_agents.operations.importing.importer import IMPORT_REPORT, REFUSED, ImportReport
from amc_agents.operations.page.markup import Child, Html, details, document, element, figures, join, section, table
from amc_agents.operations.page.run_page import answer_steps
from amc_agents.operations.report.parts import bars, bin_rows, calibration, chart, charts, curves, short
from amc_agents.training.dataset import LoggedTrajectory, iter_records
from amc_agents.training.metrics import COMPARED, LABELS, ranking_rows
from amc_agents.training.score_file import is_score_file, score_metrics, scored_states, scoring_plan
from amc_agents.training.scoring import score_ranking

_EXAMPLES = 12
_MOST_STEPS = 60
_MOST_REFUSED = 200


@dataclass
class Summary:
    """What one pass over a dataset counts."""

    outcomes: dict[tuple[str, int], float] = field(default_factory=dict)
    """(task, index) -> outcome, of the trajectories whose outcome is known."""
    steps: list[int] = field(default_factory=list)
    characters: int = 0
    policies: Counter[str] = field(default_factory=Counter)
    tasks: Counter[str] = field(default_factory=Counter)
    examples: list[LoggedTrajectory] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    @classmethod
    def of(cls, folder: Path) -> Summary:
        """Read a dataset, shard by shard."""
        summary = cls()
        for number, record in enumerate(iter_records(folder)):
            summary.add(record, number)
        return summary

    def add(self, record: LoggedTrajectory, number: int) -> None:
        """Count a trajectory."""
        trajectory = record.trajectory
        self.steps.append(len(trajectory.steps))
        self.policies[record.policy] += 1
        self.tasks[trajectory.task.id] += 1
        self.characters += len(trajectory.task.instruction) + sum(
            len(step.thought) + len(step.action) + len(step.observation) for step in trajectory.steps
        )
        if record.outcome_known:
            self.outcomes[trajectory.task.id, number] = trajectory.return_
        # Reservoir sampling: each trajectory is equally likely to be an example.
        place = number if number < _EXAMPLES else int(self.rng.integers(number + 1))
        if place < _EXAMPLES:
            self.examples[place : place + 1] = [record]

    @property
    def undecided_tasks(self) -> int:
        """Number of tasks with trajectories of different outcomes, in which a critic can be seen to rank siblings."""
        outcomes: dict[str, set[float]] = defaultdict(set)
        for (task, _), outcome in self.outcomes.items():
            outcomes[task].add(outcome)
        return sum(len(different) > 1 for different in outcomes.values())


def dataset_page(path: Path, library: str) -> str:
    """Build the page of a dataset.

    Args:
        path: its folder.
        library: the script that draws charts.
    """
    summary = Summary.of(path)
    imported = ImportReport.load(path) if (path / IMPORT_REPORT).exists() else None
    sections = [
        figures(_figures(summary)),
        section("Outcomes and lengths", _histograms(summary), _by_policy(summary)),
        *(_scores(file) for file in sorted(path.glob("*.parquet")) if is_score_file(file)),
        _import_section(imported) if imported else None,
        _refused(path),
        section(
            "Trajectories", *(_example(record) for record in summary.examples),
            note="A sample from all of the data, as a critic reads it.",
        ),
    ]  # fmt: skip
    return document(
        f"Dataset: {path.name}",
        headline(summary),
        [each for each in sections if each is not None],
        kicker=f"Dataset of trajectories · {path.name}",
        summary=_advice(summary),
        footer="Made by amc-agents. This page loads nothing from a network. Charts: Vega-Embed (BSD-3-Clause).",
        library=library,
    )


def headline(summary: Summary) -> str:
    """State the size of a dataset in a sentence."""
    n, known = len(summary.steps), len(summary.outcomes)
    outcomes = "all with a known outcome" if known == n else f"{known:,} of them with a known outcome"
    return f"{n:,} trajectories of {len(summary.tasks):,} tasks, {outcomes}."


def _advice(summary: Summary) -> str:
    if not summary.outcomes:
        return "No outcome is known yet, so no value model can be trained: join outcomes with amc import --outcomes."
    n = summary.undecided_tasks
    if not n:
        return (
            "No task has trajectories with different outcomes, so whether a critic ranks siblings cannot be measured: "
            "add several runs of the same task."
        )
    return f"{n:,} tasks have trajectories with different outcomes: on these, a critic can be seen to rank siblings."


def _figures(summary: Summary) -> Iterator[tuple[str, Child]]:
    yield "trajectories", f"{len(summary.steps):,}"
    yield "tasks", f"{len(summary.tasks):,}"
    if summary.outcomes:
        mean = estimate(summary.outcomes)
        ends = mean_interval(mean)
        interval = None if ends is None else element("span", f"{ends[0]:.3f} to {ends[1]:.3f}", class_="interval")
        yield "mean outcome over tasks, 95% interval", join([f"{mean.mean:.3f}", interval])
    yield "steps in all", short(sum(summary.steps))
    yield "characters", short(summary.characters)


def _histograms(summary: Summary) -> Html:
    outcomes = list(summary.outcomes.values())
    return charts(
        _histogram("Outcomes", "Trajectories by their outcome", outcomes, "outcome") if outcomes else None,
        _histogram("Lengths", "Trajectories by their number of steps", [float(n) for n in summary.steps], "steps"),
    )


def _histogram(title: str, subtitle: str, values: Sequence[float], axis: str) -> Html:
    counts, edges = np.histogram(values, bins=min(30, max(5, len(set(values)))))
    rows = [
        {"low": float(low), "high": float(high), "count": int(count)}
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
    ]
    description = f"{len(values):,} trajectories between {min(values):g} and {max(values):g}"
    return chart(title, subtitle, bars(rows, axis, "trajectories"), description=description)


def _by_policy(summary: Summary) -> Html | None:
    if len(summary.policies) < 2:
        return None
    rows: list[list[Child]] = [[policy or "no name", f"{n:,}"] for policy, n in summary.policies.most_common(50)]
    return table(["agent", "trajectories"], rows, "lr")


def _scores(file: Path) -> Html:
    """Show how well the critic of a score file predicts and ranks, as `amc score` prints it."""
    critic = scoring_plan(file).critic
    metrics, ranks = score_metrics(file), score_ranking(file, file.parent).as_plain()
    rows: list[list[Child]] = [
        [label, "not defined" if metrics[name] is None else f"{metrics[name]:.4g}"] for name, label in LABELS.items()
    ]
    ranking: list[list[Child]] = [[label, *cells] for label, cells in ranking_rows(ranks)] if ranks["auc"] else []
    header = [f"AUC of {COMPARED[ranks['comparison']]}" if ranking else "", "AUC", "95% interval", "pairs", "tasks"]
    return section(
        f"The critic {critic}",
        *(element("p", sentence) for sentence in ranks["sentences"]),
        charts(_calibration(file, critic), _ranking_by_step(ranks, critic)),
        details("All figures of the ranking", table(header, ranking, "lrrrr")) if ranking else None,
        details("All states together", table(["metric", "value"], rows, "lr")),
        note=join(["From ", element("code", file.name), ": values of all states of all trajectories."]),
    )


def _calibration(file: Path, critic: str) -> Html:
    bins = reliability(*scored_states(file))
    error = f"calibration error {calibration_error(bins):.3f}"
    subtitle = f"Mean outcome of states with similar values; on the dashed line, values are right: {error}"
    return chart("Calibration", subtitle, calibration(bin_rows(bins, critic), [critic]), description=error)


def _ranking_by_step(ranks: dict[str, Any], critic: str) -> Html | None:
    by_step = [
        {"method": critic, "x": int(step), **{name: area[name] for name in ("mean", "low", "high")}}
        for step, area in ranks["by_step"].items()
        if area["low"] is not None
    ]
    if not by_step:
        return None
    subtitle = "Share of pairs at a step in which the better trajectory has the higher value; 0.5 is chance"
    described = "; ".join(f"step {row['x']}: {row['mean']:.3f}" for row in by_step)
    return chart(
        "Ranking by step",
        subtitle,
        curves(by_step, [critic], "step", "AUC", domain=(0.0, 1.0), level=0.5),
        description=described,
    )


def _import_section(report: ImportReport) -> Html:
    rows: list[list[Child]] = [[label, f"{number:,}"] for label, number in report.counts()]
    notes = element("ul", *(element("li", note) for note in report.notes()))
    return section("The last import", table(["", "number"], rows, "lr"), notes if report.notes() else None)


def _refused(path: Path) -> Html | None:
    file = path / REFUSED
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if not lines:
        return None
    rows: list[list[Child]] = []
    for line in lines[:_MOST_REFUSED]:
        refusal: dict[str, Any] = json.loads(line)
        rows.append([refusal["where"], refusal["reason"]])
    more = len(lines) - len(rows)
    return section("Refused", table(["where", "reason"], rows, "ll", caption=f"and {more:,} more" if more else None))


def _example(record: LoggedTrajectory) -> Html:
    trajectory = record.trajectory
    outcome = f"outcome {trajectory.return_:.3g}" if record.outcome_known else "outcome unknown"
    steps = {"steps": [asdict(step) for step in trajectory.steps[:_MOST_STEPS]]}
    left_out = len(trajectory.steps) - _MOST_STEPS
    return details(
        f"{trajectory.task.id} · {len(trajectory.steps)} steps · {outcome}",
        element("pre", trajectory.task.instruction[:4_000]),
        answer_steps(steps),
        element("p", f"and {left_out} more steps", class_="caption") if left_out > 0 else None,
    )
