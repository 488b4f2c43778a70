"""The results of a comparison as data: means, costs and paired differences, stored as JSON with a schema.

`final_values` evaluates how well the values of final trajectories predict and rank their returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from amc_agents.bench.records import METRICS, Particles, RunResult
from amc_agents.bench.run_files import FailedRun, causes_of
from amc_agents.bench.statistics import Estimate, Measured, estimate, paired
from amc_agents.critics.reliability import Bin, calibration_error, reliability
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file
from amc_agents.training.metrics import auc


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
    policy_input_tokens: float = Field(description="Includes cached tokens.")
    policy_output_tokens: float
    policy_cached_tokens: float = Field(description="Input tokens that were not computed again.")
    critic_calls: float
    critic_tokens: float
    critic_cached_tokens: float
    calls_without_usage: float = Field(description="If above 0, token counts are lower bounds.")
    seconds: float = Field(description="Wall time of a run while others share the machine.")
    world_model_calls: float = Field(default=0.0, description="Calls of decisions that imagine or reflect.")
    world_model_tokens: float = 0.0
    world_model_cached_tokens: float = 0.0
    steps: float | None = Field(default=None, description="Steps of a trajectory; null in results of older versions.")
    dollars: float | None = Field(default=None, description="Null if a price or an amount of usage is unknown.")


class MethodResult(_Strict):
    """One method: its settings, scores and cost."""

    name: str
    label: str
    settings: dict[str, Any]
    scores: dict[str, Mean] = Field(
        description="By metric. `oracle`: the highest return of the population, which only an observer who sees the "
        "rewards can pick. `deployable`: the run's own pick, made without seeing a reward; absent if a run has none."
    )
    cost: MethodCost
    notes: list[str] = Field(description="Notes of the runs, such as lost particles or a critic that fell back.")

    @property
    def scores_one(self) -> bool:
        """Whether a run has a single scored trajectory: so has a race, whose answer alone is scored."""
        return self.settings["n_particles"] == 1 or "race" in self.settings


class FailedRuns(_Strict):
    """The runs of a method that failed: they have no score, and count neither as 0 nor as run."""

    method: str
    label: str
    failed: int
    runs: int = Field(description="All runs of the method, failed runs included.")
    causes: list[str] = Field(description="The most frequent errors, with their counts.")


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
    command: str = Field(description="The command that made the results.")
    settings: dict[str, Any]
    methods: list[MethodResult]
    comparisons: list[PairedDifference]
    failures: list[FailedRuns] = Field(default=[], description="Methods with failed runs.")
    seconds: float | None = Field(default=None, description="Total wall time; null if the comparison was resumed.")

    def save(self, path: str | Path) -> Path:
        """Write the results as JSON."""
        path = Path(path)
        replace_file(path, self.model_dump_json(indent=1) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read results that `save` wrote.

        Raises:
            CheckpointError: the file cannot be read, or its content does not match the schema.
        """
        try:
            return cls.model_validate_json(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} is not a results.json of `amc bench`: {str(error)[:200]}") from error

    def of(self, name: str) -> MethodResult | None:
        """Return the result of a method, or None."""
        return next((method for method in self.methods if method.name == name), None)


def results_schema() -> dict[str, Any]:
    """Return the JSON schema of `results.json`."""
    return Results.model_json_schema()


class Described(Protocol):
    """A method: what results say about it."""

    @property
    def name(self) -> str:
        """Short name."""
        ...

    @property
    def label(self) -> str:
        """Name in tables."""
        ...

    def as_plain(self) -> dict[str, Any]:
        """Return the settings as plain values."""
        ...


def summarise(
    records: Sequence[RunResult],
    methods: Sequence[Described],
    settings: Mapping[str, Any],
    *,
    command: str = "",
    seconds: float | None = None,
    failures: Sequence[FailedRun] = (),
) -> Results:
    """Compute the means of every metric, and the paired differences of every two methods.

    Args:
        records: results of single runs.
        methods: the methods to summarise; those without a record are left out.
        settings: settings that all records share.
        command: the command that made the records.
        seconds: total wall time; None if the comparison was resumed.
        failures: the failed runs, which have no record.

    Raises:
        ConfigurationError: no record belongs to one of the methods.
    """
    by_method = {method.name: [record for record in records if record.method == method.name] for method in methods}
    by_method = {name: runs for name, runs in by_method.items() if runs}
    if not by_method:
        raise ConfigurationError("there are no records of these methods to summarise")
    return Results(
        command=command,
        settings=dict(settings),
        methods=[_method_result(method, by_method[method.name]) for method in methods if method.name in by_method],
        comparisons=[
            comparison
            for b, a in combinations(by_method, 2)
            for metric in METRICS
            if (comparison := _comparison(a, b, metric, by_method[a], by_method[b])) is not None
        ],
        failures=_failed_by_method(methods, by_method, failures),
        seconds=seconds,
    )


def _failed_by_method(
    methods: Sequence[Described], by_method: Mapping[str, Sequence[RunResult]], failures: Sequence[FailedRun]
) -> list[FailedRuns]:
    failed = [(method, [run for run in failures if run.method == method.name]) for method in methods]
    return [
        FailedRuns(
            method=method.name,
            label=method.label,
            failed=len(runs),
            runs=len(runs) + len(by_method.get(method.name, ())),
            causes=causes_of(run.error for run in runs),
        )
        for method, runs in failed
        if runs
    ]


def measured(records: Sequence[RunResult], metric: str) -> Measured:
    """Map (task, seed) to the metric, for the records that have it."""
    values = {(record.task, record.seed): getattr(record.scores, metric) for record in records}
    return {key: value for key, value in values.items() if value is not None}


def _method_result(method: Described, records: Sequence[RunResult]) -> MethodResult:
    scores = {metric: values for metric in METRICS if (values := measured(records, metric))}
    costs = {name: _mean_cost(records, name) for name in MethodCost.model_fields}
    return MethodResult(
        name=method.name,
        label=method.label,
        settings=method.as_plain(),
        scores={metric: Mean(**estimate(values)._asdict()) for metric, values in scores.items()},
        cost=MethodCost.model_validate(costs),
        notes=sorted({note for record in records for note in record.notes}),
    )


def _mean_cost(records: Sequence[RunResult], name: str) -> float | None:
    costs = {(record.task, record.seed): getattr(record.cost, name) for record in records}
    known = {key: float(value) for key, value in costs.items() if value is not None}
    return estimate(known).mean if len(known) == len(costs) else None


def _comparison(
    a: str, b: str, metric: str, records_a: Sequence[RunResult], records_b: Sequence[RunResult]
) -> PairedDifference | None:
    of_a, of_b = measured(records_a, metric), measured(records_b, metric)
    if len({task for task, _ in of_a.keys() & of_b.keys()}) < 2:
        return None
    return PairedDifference(a=a, b=b, metric=metric, **paired(of_a, of_b)._asdict())


class FinalValues(NamedTuple):
    """The values of a method's final trajectories against their returns."""

    bins: list[Bin]
    """Reliability of the values as predictions of the return; errors are clustered by task."""
    calibration_error: float
    auc: Estimate | None
    """Probability that a success has a higher value than a failure of the same run, over tasks; None if no run has
    both."""
    best: list[Estimate]
    """`[M]` mean return of the k trajectories with the highest values, for k = 1 to the smallest population."""
    trajectories: int


def final_values(records: Sequence[RunResult], success: float) -> FinalValues | None:
    """Evaluate the values of a method's final trajectories.

    Args:
        records: the runs of a method.
        success: minimum return of a success.

    Returns:
        None if the values mean nothing: single trajectories, or a critic that does not predict the whole return.
    """
    runs = [(run, run.particles) for run in records if run.particles and run.scores.deployable is not None]
    runs = [(run, particles) for run, particles in runs if len(particles.returns) > 1]
    if not runs or all(len(set(particles.values)) == 1 for _, particles in runs):
        return None
    values = np.concatenate([particles.values for _, particles in runs])
    returns = np.concatenate([particles.returns for _, particles in runs])
    tasks = np.repeat([run.task for run, _ in runs], [len(particles.values) for _, particles in runs])
    bins = reliability(values, returns, tasks)
    areas = {(run.task, run.seed): _auc(particles, success) for run, particles in runs}
    known = {key: area for key, area in areas.items() if area is not None}
    depth = min(len(particles.returns) for _, particles in runs)
    best = [
        estimate({(run.task, run.seed): _mean_of_best(particles, k) for run, particles in runs})
        for k in range(1, depth + 1)
    ]
    return FinalValues(bins, calibration_error(bins), estimate(known) if known else None, best, len(values))


def _auc(particles: Particles, success: float) -> float | None:
    return auc(np.array(particles.values), np.array(particles.returns) >= success)


def _mean_of_best(particles: Particles, k: int) -> float:
    order = np.argsort(-np.array(particles.values), kind="stable")
    return float(np.array(particles.returns)[order[:k]].mean())
