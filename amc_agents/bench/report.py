"""Results as data (JSON with a schema), as a table in the terminal, and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from rich import box
from rich.table import Table

from amc_agents.bench.methods import Method
from amc_agents.bench.records import RunResult
from amc_agents.bench.scores import METRICS
from amc_agents.bench.statistics import Estimate, Measured, estimate, paired
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file
from amc_agents.markdown import table as markdown_table


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Mean(_Strict):
    """A mean over tasks; the seeds of a task are averaged first."""

    mean: float
    standard_error: float | None = Field(description="Over tasks; null with a single task.")
    tasks: int
    seeds: int


class MethodCost(_Strict):
    """Means over tasks of what a run used."""

    policy_calls: float = Field(description="Model calls of the policy.")
    policy_input_tokens: float = Field(description="Cached ones included.")
    policy_output_tokens: float
    policy_cached_tokens: float = Field(description="Input tokens that were not computed again.")
    critic_calls: float
    critic_tokens: float
    critic_cached_tokens: float
    calls_without_usage: float = Field(description="Above 0, token counts are lower bounds.")
    seconds: float = Field(description="Wall time of a run while others share the machine.")
    world_model_calls: float = Field(default=0.0, description="Of decisions that imagine, or reflect.")
    world_model_tokens: float = 0.0
    world_model_cached_tokens: float = 0.0
    steps: float | None = Field(default=None, description="Of a trajectory; null in results of older versions.")


class MethodResult(_Strict):
    """One method: its settings, scores and cost."""

    name: str
    label: str
    settings: dict[str, Any]
    scores: dict[str, Mean] = Field(
        description="By metric. `oracle`: the highest return of the population, for somebody who sees the rewards. "
        "`deployable`: the run's own pick, made without seeing a reward; absent where a run has none."
    )
    cost: MethodCost
    notes: list[str] = Field(description="What a reader has to know: particles lost, a critic that fell back.")


class PairedDifference(_Strict):
    """`a` minus `b` over the tasks that both have, with a 95% interval over tasks."""

    a: str
    b: str
    metric: str
    difference: float
    low: float = Field(description="Lower end of the 95% interval over tasks: bootstrap, Student's t below 50 tasks.")
    high: float
    standard_error: float
    tasks: int
    seeds: int


class Results(_Strict):
    """A comparison's results: `results.json`."""

    version: int = 1
    command: str = Field(description="What made them.")
    settings: dict[str, Any]
    methods: list[MethodResult]
    comparisons: list[PairedDifference]
    seconds: float | None = Field(default=None, description="Wall time of the whole, where it ran in one go.")

    def save(self, path: str | Path) -> Path:
        """Write them as JSON."""
        path = Path(path)
        replace_file(path, self.model_dump_json(indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read them back.

        Raises:
            CheckpointError: the file cannot be read, or holds something else.
        """
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is not a results.json of `amc bench`: {str(error)[:200]}") from error

    def of(self, name: str) -> MethodResult | None:
        """The result of a method, or None."""
        return next((method for method in self.methods if method.name == name), None)


def summarise(
    records: Sequence[RunResult],
    methods: Sequence[Method],
    settings: Mapping[str, Any],
    *,
    command: str = "",
    seconds: float | None = None,
) -> Results:
    """Means of every metric, and the paired differences of every two methods.

    Raises:
        ConfigurationError: no record belongs to one of the methods.
    """
    present = [method for method in methods if any(record.method == method.name for record in records)]
    if not present:
        raise ConfigurationError("there are no records of these methods to summarise")
    by_method = {method.name: [one for one in records if one.method == method.name] for method in present}
    return Results(
        command=command,
        settings=dict(settings),
        methods=[_method_result(method, by_method[method.name]) for method in present],
        comparisons=[
            comparison
            for b, a in combinations(by_method, 2)
            for metric in METRICS
            if (comparison := _comparison(a, b, metric, by_method[a], by_method[b])) is not None
        ],
        seconds=seconds,
    )


def measured(records: Sequence[RunResult], metric: str) -> Measured:
    """(task, seed) -> the metric, for the records that have it."""
    values = {(one.task, one.seed): getattr(one.scores, metric) for one in records}
    return {key: value for key, value in values.items() if value is not None}


def score_table(results: Results, title: str = "") -> Table:
    """The main scores with standard errors, for the terminal."""
    headings = {
        "success": "success",
        "oracle": "oracle's\npick",
        "deployable": "deployable\npick",
        "top5": "top 5",
        "mean": "mean\nparticle",
    }
    used = _used(results, headings)
    # Five do not fit; the Markdown has them all.
    shown = dict(list(used.items())[:4])
    return _table(results, shown, {}, title or None, _caption(results))


def detail_table(results: Results) -> Table:
    """Scores over distinct trajectories, and costs of a task, for the terminal."""
    headings = {"top5_distinct": "top 5\ndistinct", "mean_distinct": "mean\ndistinct"}
    caption = "Calls and tokens per task; critic tokens without cached ones; seconds while runs share the machine."
    return _table(results, _used(results, headings), _costs(results), None, caption)


def difference_table(results: Results) -> Table | None:
    """The differences that a reader asks for first, or None where there are none."""
    shown = asked_first(results)
    if not shown:
        return None
    table = _narrow("paired differences over tasks, with 95% intervals", _rival_note(results))
    for heading in ("difference", "metric"):
        table.add_column(heading, no_wrap=True)
    for heading in ("mean", "95% interval"):
        table.add_column(heading, justify="right", no_wrap=True)
    labels = {method.name: method.label for method in results.methods}
    for one in shown:
        row = f"{labels[one.a]} - {labels[one.b]}", METRICS[one.metric]
        clear = "green" if one.low > 0 else "red" if one.high < 0 else ""
        table.add_row(*row, f"{one.difference:+.3f}", f"[{one.low:+.3f}, {one.high:+.3f}]", style=clear)
    return table


def markdown(results: Results) -> str:
    """The table of scores and the first differences as Markdown."""
    shown = _used(results, {metric: METRICS[metric] for metric in _SHOWN})
    costs = _costs(results)
    headings = ["method", *shown.values(), *costs]
    rows = [_cells(method, shown, costs) for method in results.methods]
    lines = [markdown_table(headings, rows, "l" + "r" * (len(headings) - 1)), "", _caption(results)]
    labels = {method.name: method.label for method in results.methods}
    asked = asked_first(results)
    if asked:
        differences = [
            [f"{labels[one.a]} - {labels[one.b]}", METRICS[one.metric], f"{one.difference:+.3f}",
             f"{one.low:+.3f} to {one.high:+.3f}"]
            for one in asked
        ]  # fmt: skip
        lines += ["", markdown_table(["paired difference", "metric", "mean", "95% interval"], differences, "llrr")]
        note = _rival_note(results)
        lines += ["", note] if note else []
    return "\n".join(lines) + "\n"


def asked_first(results: Results) -> list[PairedDifference]:
    """The differences that a reader asks for first.

    A method that decides by a critic is held against ReAct, and against the better of what a policy can do alone: most
    of what it gains over ReAct may be voting. One whose critic knows the world has no deployable pick.
    """
    wanted = _ASKED_FIRST | {
        (one.name, other, metric)
        for one in results.methods
        if _asks_a_critic(one)
        for metric in _decided_by(results, one)
        for other in ("react", _rival(results, metric))
    }
    return [one for one in results.comparisons if (one.a, one.b, one.metric) in wanted]


def results_schema() -> dict[str, Any]:
    """The JSON schema of `results.json`."""
    return Results.model_json_schema()


_SHOWN = ("success", "oracle", "deployable", "top5", "mean", "top5_distinct", "mean_distinct")
"""Metrics of the tables; the others are in the JSON."""

_COSTS: Mapping[str, Callable[[MethodCost], str]] = {
    "steps": lambda cost: "-" if cost.steps is None else f"{cost.steps:.1f}",
    "model calls": lambda cost: f"{cost.policy_calls:,.0f}",
    "tokens out": lambda cost: f"{cost.policy_output_tokens:,.0f}",
    "critic tokens": lambda cost: f"{cost.critic_tokens - cost.critic_cached_tokens:,.0f}",
    "imagined tokens": lambda cost: f"{cost.world_model_tokens - cost.world_model_cached_tokens:,.0f}",
    "time (s)": lambda cost: f"{cost.seconds:.1f}",
}
"""Costs of the tables, per task. A critic's tokens are those computed: a cache answers the rest."""

_ALONE = ("react-greedy", "vote", "vote-greedy", "vote-list")
"""What the policy can do without a critic."""

_ASKED_FIRST = {
    ("best-of-n", "react", "oracle"),
    ("amc", "best-of-n", "oracle"),
    ("amc", "smc", "oracle"),
    ("amc", "best-of-n", "top5"),
    ("amc", "best-of-n", "mean"),
    ("amc", "best-of-n", "mean_distinct"),
    ("amc-hidden", "best-of-n", "deployable"),
    ("amc-hidden", "react-greedy", "deployable"),
}


def _used(results: Results, headings: Mapping[str, str]) -> dict[str, str]:
    """The metrics that any method shows: single trajectories have no top 5."""
    return {
        metric: heading
        for metric, heading in headings.items()
        if any(_cell_of(method, metric) != "-" for method in results.methods)
        and (metric != "success" or _success_differs(results))
    }


def _success_differs(results: Results) -> bool:
    """A success is not worth 1 in this world: what is won, and how often, are two things."""
    pairs = [(one.scores[name].mean for name in ("success", "oracle")) for one in results.methods]
    return any(won != earned for won, earned in pairs)


def _costs(results: Results) -> dict[str, Callable[[MethodCost], str]]:
    """The costs of the tables; steps where methods decide on them, and what is imagined where anything is."""
    unused = {
        "steps": not any(one.settings.get("decision") for one in results.methods),
        "imagined tokens": not any(one.cost.world_model_tokens for one in results.methods),
    }
    return {name: read for name, read in _COSTS.items() if not unused.get(name)}


def _asks_a_critic(method: MethodResult) -> bool:
    return bool((method.settings.get("decision") or {}).get("use_critic"))


def _decided_by(results: Results, method: MethodResult) -> list[str]:
    """The metrics that a method of single trajectories is compared by."""
    earned = "oracle" if method.settings.get("oracle") else "deployable"
    return ["success", earned] if _success_differs(results) else [earned]


def _rival(results: Results, metric: str) -> str | None:
    """The better of vote and greedy ReAct, by their means."""
    rivals = [one for one in results.methods if one.name in _ALONE and metric in one.scores]
    return max(rivals, key=lambda one: one.scores[metric].mean).name if rivals else None


def _rival_note(results: Results) -> str:
    judged = [one for one in results.methods if _asks_a_critic(one)]
    rivals = {_rival(results, metric) for one in judged for metric in _decided_by(results, one)}
    named = " and ".join(one.label for one in results.methods if one.name in rivals)
    notes = [f"{named}: the best here of {', '.join(_ALONE)}, chosen by these figures."] if named else []
    if any(one.settings.get("oracle") for one in judged):
        notes.append("ORACLE: judged by what knows the world; an upper bound, not a method.")
    if any(one.settings.get("listed") for one in results.methods):
        notes.append("listed: all actions that the world lists are candidates, under the exact prior.")
    return " ".join(notes)


def _method_result(method: Method, records: Sequence[RunResult]) -> MethodResult:
    scores = {metric: values for metric in METRICS if (values := measured(records, metric))}
    costs = {name: _mean_cost(records, name) for name in MethodCost.model_fields}
    return MethodResult(
        name=method.name,
        label=method.label,
        settings=method.as_plain(),
        scores={metric: Mean(**estimate(values)._asdict()) for metric, values in scores.items()},
        cost=MethodCost.model_validate(costs),
        notes=sorted({note for one in records for note in one.notes}),
    )


def _mean_cost(records: Sequence[RunResult], name: str) -> float | None:
    used = {(one.task, one.seed): getattr(one.cost, name) for one in records}
    known = {key: float(value) for key, value in used.items() if value is not None}
    return estimate(known).mean if len(known) == len(used) else None


def _comparison(
    a: str, b: str, metric: str, records_a: Sequence[RunResult], records_b: Sequence[RunResult]
) -> PairedDifference | None:
    of_a, of_b = measured(records_a, metric), measured(records_b, metric)
    if len({task for task, _ in of_a.keys() & of_b.keys()}) < 2:
        return None
    return PairedDifference(a=a, b=b, metric=metric, **paired(of_a, of_b)._asdict())


def _table(
    results: Results,
    metrics: Mapping[str, str],
    costs: Mapping[str, Callable[[MethodCost], str]],
    title: str | None,
    caption: str,
) -> Table:
    table = _narrow(title, caption)
    table.add_column("method", no_wrap=True)
    for heading in metrics.values():
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in costs:
        table.add_column(heading.replace(" ", "\n"), justify="right", style="dim")
    for method in results.methods:
        table.add_row(*_cells(method, metrics, costs))
    return table


def _narrow(title: str | None, caption: str | None) -> Table:
    # Fits four scores with their errors into a terminal of 80 columns.
    return Table(
        title=title,
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )


def _cells(
    method: MethodResult, metrics: Mapping[str, str], costs: Mapping[str, Callable[[MethodCost], str]]
) -> list[str]:
    scores = [_cell_of(method, metric) for metric in metrics]
    return [method.label, *scores, *(read(method.cost) for read in costs.values())]


def _cell_of(method: MethodResult, metric: str) -> str:
    # One trajectory has no top 5 and no spread: its return is what one gets, with and without seeing rewards.
    single = method.settings["n_particles"] == 1
    return score_text(
        None if single and metric not in ("success", "oracle", "deployable") else method.scores.get(metric)
    )


def score_text(score: Mean | Estimate | None) -> str:
    """A mean and its standard error, as tables have it."""
    if score is None:
        return "-"
    if score.standard_error is None or not math.isfinite(score.standard_error):
        return f"{score.mean:.3f}"
    return f"{score.mean:.3f} ± {score.standard_error:.3f}"


def _caption(results: Results) -> str:
    means = [score for method in results.methods for score in method.scores.values()]
    tasks, seeds = {one.tasks for one in means}, {one.seeds for one in means}
    alone = all(method.settings["n_particles"] == 1 for method in results.methods)
    particles = "" if alone else f", N = {results.settings.get('n_particles', '?')}"
    told = (
        f"{_range(tasks)} tasks, {_range(seeds)} seed(s){particles}; "
        "mean ± standard error over tasks. The oracle's pick sees the rewards; the deployable pick does not."
    )
    if _success_differs(results):
        least = results.settings.get("success", 1)
        told += f" Success: the oracle's pick returned {least:g} or more; the picks' columns are returns."
    tried = results.settings.get("settings_tried")
    if tried:
        counts = ", ".join(f"{name} {count}" for name, count in tried.items())
        told += f" Settings tried on training tasks: {sum(tried.values())} ({counts})."
    return told


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
