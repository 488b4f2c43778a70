"""Play runs of a comparison and score them; estimate what all of them would cost from one run of each method."""

from __future__ import annotations

import hashlib
import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amc_agents.bench.comparison import Comparison, predicts_return
from amc_agents.bench.engine import Execute, execute_work, results_of
from amc_agents.bench.methods import Method
from amc_agents.bench.records import Cost, RunResult, cost_of, particles_of, scores_of
from amc_agents.bench.results_folder import ResultsFolder, WorkItem, worker_file
from amc_agents.bench.run_files import (
    Failures,
    RunDecisions,
    RunTrajectories,
    stops,
)
from amc_agents.bench.searches import reflexion, tree_search
from amc_agents.budget import Budget
from amc_agents.config import Config
from amc_agents.population.conclusion import quiet_notes
from amc_agents.population.features.watchers import watched_as
from amc_agents.population.wrap import amc
from amc_agents.run import Run
from amc_agents.runtime.deciding import Sink
from amc_agents.settings import AmcSettings
from amc_agents.smc import Adaptive
from amc_agents.types import Task

__all__ = ["Comparison", "ComparisonWork", "RunCallback", "compare", "run_one", "run_seed"]
_ANY_NUMBER = 10**15
RunCallback = Callable[[RunResult, Run], None]
"""Receives the result and the whole run after each run."""


@dataclass(frozen=True)
class ComparisonWork:
    """The runs of a comparison as work items (`amc_agents.bench.engine.Work`)."""

    comparison: Comparison
    keep_decisions: bool = False
    """Store every decision too (`amc_agents.bench.run_files`), for methods that make any."""
    on_run: RunCallback | None = None
    keep_trajectories: bool = False
    """Store every trajectory too (`amc_agents.bench.run_files`)."""
    keep_failures: bool = False
    """Record a run that fails (`amc_agents.bench.run_files`) and go on; False: its error ends the comparison."""

    def items(self) -> list[WorkItem]:
        """Return all runs of the comparison."""
        return self.comparison.items()

    def folder(self, out: str | Path, *, resume: bool, worker: str = "") -> ResultsFolder:
        """Return the results folder, checked against the comparison's settings."""
        settings, methods = self.comparison.settings, self.comparison.method_settings
        return ResultsFolder(out, settings, methods, resume=resume, worker=worker)

    def parse(self, values: Mapping[str, Any]) -> RunResult:
        """Read a stored result."""
        return RunResult.from_json(values)

    @contextmanager
    def executor(self, out: str | Path, worker: str) -> Iterator[Execute]:
        """Return the function that plays a run; the files of what is kept are open inside the `with` block."""
        methods = {method.name: method for method in self.comparison.methods}
        tasks = {task.id: task for task in self.comparison.tasks}
        with ExitStack() as stack:
            stack.enter_context(quiet_notes())
            kept = dict(decisions=self.keep_decisions, trajectories=self.keep_trajectories, failures=self.keep_failures)
            files = {kind: stack.enter_context(worker_file(out, kind, worker)) for kind in kept if kept[kind]}
            failures = Failures(files["failures"]) if self.keep_failures else None

            async def execute(item: WorkItem) -> RunResult | None:
                decisions: list[dict[str, Any]] = []
                try:
                    result, run = await run_one(
                        self.comparison, item.seed, tasks[item.task], methods[item.name], sink=decisions.append
                    )
                except Exception as error:
                    if failures is None or stops(error):
                        raise
                    failures.add(item, error)
                    return None
                if failures is not None:
                    failures.succeeded()
                # Decisions are stored first: a run that has a result is not repeated.
                if self.keep_decisions and decisions:
                    line = RunDecisions(*item.key, result.scores.success > 0, tuple(decisions))
                    files["decisions"].append(line.to_json(), allow_nan=False)
                if self.keep_trajectories:
                    files["trajectories"].append(RunTrajectories.of(result, run).to_json())
                if self.on_run is not None:
                    self.on_run(result, run)
                return result

            yield execute


async def compare(
    comparison: Comparison,
    out: str | Path,
    *,
    resume: bool = False,
    n_concurrent: int = 8,
    progress: RunCallback | None = None,
    worker: str = "",
    keep_decisions: bool = False,
) -> list[RunResult]:
    """Execute every run of a comparison that `out` has no result of.

    Args:
        comparison: what to run.
        out: the results folder.
        resume: continue with the results in `out`.
        n_concurrent: runs in progress at the same time; their particles share the model's batches.
        progress: called after each run.
        worker: names this process's file in a folder that several share.
        keep_decisions: store every decision too (`amc_agents.bench.run_files`), for methods that make any.

    Returns:
        All results of the comparison, including those of earlier calls.

    Raises:
        ConfigurationError: `out` holds results and `resume` is not set, or results with other settings.
    """
    work = ComparisonWork(comparison, keep_decisions, progress)
    await execute_work(work, out, resume=resume, n_concurrent=n_concurrent, worker=worker)
    return results_of(work, out)


async def run_one(
    comparison: Comparison, seed: int, task: Task, method: Method, *, sink: Sink | None = None
) -> tuple[RunResult, Run]:
    """Play one run and score it; `sink` receives the records of its decisions, if the method makes any."""
    started = time.perf_counter()
    play = _search if method.tree else _retry if method.trials else _play
    with watched_as(f"{method.name}, task {task.id}, seed {seed}"):
        run = await play(comparison, seed, task, method, sink)
    seconds = time.perf_counter() - started
    await run.aclose()
    scores = scores_of(
        run,
        single=method.race is not None
        or (comparison.size_of(method) == 1 and not method.oracle and method.trials is None),
        pick_means_something=predicts_return(comparison.critic_of(method)) and not method.oracle,
        success=comparison.success,
    )
    cost = cost_of(run, seconds, comparison.prices)
    prompt = hash_of_input(comparison.input_of(method, task))
    return RunResult(method.name, task.id, seed, scores, cost, run.notes, particles_of(run), prompt), run


async def _play(comparison: Comparison, seed: int, task: Task, method: Method, sink: Sink | None) -> Run:
    """Play a run of particles."""
    critic = comparison.critic_of(method)
    played = comparison.played(method, task, sink)
    arguments = {"settings": AmcSettings(), **played.arguments}
    graph = amc(
        played.agent,
        "uniform" if method.decision else critic,
        n_particles=comparison.size_of(method),
        resample=method.resample,
        beta=method.beta,
        stop_at=method.stop_at,
        race=method.race,
        # Without a limit: it reserves what a request may cost, which is what a cancelled request counts.
        budget=None if method.race is None else Budget(calls=_ANY_NUMBER),
        horizon=comparison.horizon,
        seed=run_seed(seed, task.id, method.name),
        settings=replace(
            arguments.pop("settings"),
            success_reward=method.success_reward,
            hide_rewards=method.hide_rewards,
            scheme=method.scheme,
            finished=method.finished,
            config=Config(),  # The stored settings alone determine a comparison, not the environment variables.
        ),
        **arguments,
    )
    return await graph.arun(played.input)


async def _search(comparison: Comparison, seed: int, task: Task, method: Method, sink: Sink | None) -> Run:
    """Run a tree search, which makes no decisions that `sink` could record."""
    assert method.tree is not None
    return await tree_search(
        comparison.model_of(method, task, sink),
        comparison.critic_of(method),
        comparison.environment,
        task,
        method.tree,
        horizon=comparison.horizon,
        seed=run_seed(seed, task.id, method.name),
        success=comparison.success,
        rules=comparison.rules,
    )


async def _retry(comparison: Comparison, seed: int, task: Task, method: Method, sink: Sink | None) -> Run:
    """Run Reflexion, which makes no decisions that `sink` could record."""
    assert method.trials is not None
    return await reflexion(
        comparison.model_of(method, task, sink),
        comparison.environment,
        task,
        trials=method.trials,
        horizon=comparison.horizon,
        seed=run_seed(seed, task.id, method.name),
        success=comparison.success,
        rules=comparison.rules,
    )


def run_seed(seed: int, task_id: str, method: str) -> int:
    """Return the seed of one run: the same on every machine, and independent of the seeds of other runs."""
    words = [seed, zlib.crc32(task_id.encode()), zlib.crc32(method.encode())]
    return int(np.random.SeedSequence(words).generate_state(1, np.uint64)[0] >> np.uint64(1))


def hash_of_input(given: Mapping[str, Any]) -> str:
    """Return a hash of an agent's input: the same for equal prompts in every process."""
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=_plain).encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    """Convert a message, or another object of an agent's input, to JSON. A random message id is not a prompt."""
    return value.model_dump(exclude={"id"}) if hasattr(value, "model_dump") else str(value)


@dataclass(frozen=True)
class MethodEstimate:
    """What all runs of a method cost, about: estimated from one run."""

    method: str
    n_runs: int
    policy_calls: float
    policy_tokens: float
    critic_calls: float
    critic_tokens: float
    dollars: float | None
    """None: a price is unknown."""


class PlannedRuns(NamedTuple):
    """Runs of a method that are planned."""

    method: str
    n_particles: int | None
    """None: the comparison's."""
    n_runs: int


async def estimate_runs(
    comparison: Comparison, planned: Sequence[PlannedRuns], progress: Callable[[str], None] = lambda method: None
) -> list[MethodEstimate]:
    """Play the first task once by each method, for real, and multiply.

    A method is played with a single particle. N particles cost N times that, because each calls the policy and is read
    by the critic; a race costs less, because it stops particles. Searches and single decisions are played as they
    are. Tasks differ in length, so the estimate is no bound.

    Args:
        comparison: the methods, each with one of the settings that the planned runs have.
        planned: the runs.
        progress: called with each method's name before it plays.
    """
    estimates = []
    for method in comparison.methods:
        progress(method.name)
        n_runs, n_particles = 0, 0
        for runs in planned:
            if runs.method == method.name:
                sized = method if runs.n_particles is None else replace(method, n_particles=runs.n_particles)
                n_runs += runs.n_runs
                n_particles += runs.n_runs * _largest(comparison, sized)
        estimates.append(_times(method.name, n_runs, n_particles, await _cost_of_one(comparison, method)))
    return estimates


async def _cost_of_one(comparison: Comparison, method: Method) -> Cost:
    """Play the first task with one particle; searches as they are."""
    played = method if _largest(comparison, method) == 1 else replace(method, n_particles=1, race=None)
    result, _ = await run_one(comparison, comparison.seeds[0], comparison.tasks[0], played)
    return result.cost


def _largest(comparison: Comparison, method: Method) -> int:
    """Return the number of particles, at most; 1 for searches, which are played as they are."""
    size = comparison.size_of(method)
    if method.tree or method.trials:
        return 1
    return size.most if isinstance(size, Adaptive) else size


def _times(name: str, n_runs: int, times: int, cost: Cost) -> MethodEstimate:
    return MethodEstimate(
        name,
        n_runs,
        times * cost.policy_calls,
        times * (cost.policy_input_tokens + cost.policy_output_tokens),
        times * (cost.critic_calls + cost.world_model_calls),
        times * (cost.critic_tokens + cost.world_model_tokens),
        None if cost.dollars is None else times * cost.dollars,
    )
