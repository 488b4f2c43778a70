"""Executes a job, collects and scores on a cluster.

Only this process writes results folders, datasets and score files; the cluster returns lines and values to store.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amc_agents.bench.engine import CountCallback, Job, Work, execute_work, results_of
from amc_agents.bench.results_folder import ResultsFolder, ResultT, WorkItem, software, sole_run
from amc_agents.bench.run_files import FailedRun, Failures, described
from amc_agents.concurrency.background import background_loop, run_in_background
from amc_agents.concurrency.gather import side_by_side
from amc_agents.errors import ConfigurationError
from amc_agents.files import JsonLinesFile
from amc_agents.training.collecting import Rollouts
from amc_agents.training.dataset import LoggedTrajectory
from amc_agents.training.scoring import Evaluated, state_values, value_critic
from amc_agents.types import Critic, FloatArray, Task, Trajectory
from amc_agents_ray.cluster import LostCall, RayCluster, below_working_directory, ray_settings

Lines = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a file of a results folder -> its lines."""
_RECORDS, _FAILURES = "records.jsonl", "failures.jsonl"


def run_on_ray(
    job: Job[ResultT],
    out: str | Path,
    executor: str,
    *,
    resume: bool = False,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
) -> list[ResultT]:
    """Execute every item of a job that `out` has no result of on a Ray cluster.

    The items of a task are one call, so that they share a process and its prefix caches. Ray repeats the calls of
    processes and machines that die; items that were finished there are executed again.

    Args:
        job: what to execute.
        out: the results folder, on this machine.
        executor: "ray...", which says which cluster, what each call reserves, and what is shipped.
        resume: continue with the results in `out`.
        n_concurrent: items of a call in progress at the same time.
        progress: called with the number of stored results after each call.

    Returns:
        All results of the job, including those of earlier calls.

    Raises:
        ConfigurationError: as `engine.run_job`; or there is no cluster, or a machine has other versions installed.
        AmcError: an item failed, and the job does not record failures; finished results are kept.
    """
    settings, work = ray_settings(executor), job.prepare()
    with sole_run(out, doing=job.command), RayCluster(settings, leave_out=[below_working_directory(out)]) as cluster:
        executing = _Driver(job, work, out, cluster, n_concurrent, progress).execute(resume=resume)
        run_in_background(executing, n_workers=n_concurrent)
        return results_of(work, out)


class _Driver:
    """Sends the items of each task to the cluster, and stores what comes back."""

    def __init__(
        self,
        job: Job[Any],
        work: Work[Any],
        out: str | Path,
        cluster: RayCluster,
        n_concurrent: int,
        progress: CountCallback | None,
    ) -> None:
        self._job, self._work, self._out, self._cluster = pickle.dumps(job), work, Path(out), cluster
        self._n_concurrent, self._progress, self._n_stored = n_concurrent, progress, 0

    async def execute(self, *, resume: bool) -> None:
        """Execute the items that have no result."""
        with ExitStack() as self._open:
            self._folder: ResultsFolder = self._open.enter_context(self._work.folder(self._out, resume=resume))
            self._files: dict[str, JsonLinesFile] = {}
            self._failures = Failures(self._file(_FAILURES))
            stored = {result.key for result in results_of(self._work, self._out)}
            self._count(len(stored))
            waiting = defaultdict(list)
            for item in self._work.items():
                if item.key not in stored:
                    waiting[item.task].append(item)
            await side_by_side(*map(self._play, waiting.values()))

    async def _play(self, items: list[WorkItem]) -> None:
        try:
            lines = await self._cluster.call(_execute_there, self._job, items, self._n_concurrent, software())
        except LostCall as error:
            if len(items) > 1:  # An item that kills its process must not take the others with it.
                await side_by_side(*(self._play([item]) for item in items))
            else:
                self._failures.record(FailedRun(*items[0].key, described(error)), error)
            return
        self._store(lines)

    def _store(self, lines: Lines) -> None:
        # Records come last: an item that has a record is not executed again.
        for name in sorted(lines, key=lambda name: name == _RECORDS):
            for values in lines[name]:
                if name == _RECORDS:
                    self._folder.add(self._work.parse(values))
                    self._failures.succeeded()
                elif name == _FAILURES:
                    self._failures.record(FailedRun.from_json(values))
                else:
                    self._file(name).append(values)
        self._count(len(lines.get(_RECORDS, ())))

    def _file(self, name: str) -> JsonLinesFile:
        if name not in self._files:
            self._files[name] = self._open.enter_context(JsonLinesFile(self._out / name))
        return self._files[name]

    def _count(self, stored: int) -> None:
        self._n_stored += stored
        if self._progress is not None:
            self._progress(self._n_stored)


def _execute_there(job: bytes, items: Sequence[WorkItem], n_concurrent: int, needed: Mapping[str, str]) -> Lines:
    """Execute items in a process of the cluster, each in a folder of its own, and return all lines."""
    here = software()
    if here != needed:
        different = ", ".join(f"{name} {here.get(name)} instead of {needed[name]}" for name in needed)
        raise ConfigurationError(f"a machine of the cluster has other versions: {different}. Install the same")
    with TemporaryDirectory() as scratch:
        folders = [Path(scratch) / str(number) for number in range(len(items))]
        # On the background loop, as in `run_job`: connections of models and critics outlive this call.
        run_in_background(_execute_apart(_prepared(job), items, folders, n_concurrent), n_workers=n_concurrent)
        names = sorted({file.name for folder in folders for file in folder.glob("*.jsonl")})
        return {name: [line for folder in folders for line in _lines(folder / name)] for name in names}


async def _execute_apart(
    work: Work[Any], items: Sequence[WorkItem], folders: Sequence[Path], n_concurrent: int
) -> None:
    runs = (
        execute_work(work, folder, resume=False, n_concurrent=1, items=[item])
        for item, folder in zip(items, folders, strict=True)
    )
    await side_by_side(*runs, limit=n_concurrent)


@lru_cache(maxsize=2)
def _prepared(job: bytes) -> Work[Any]:
    """Load what a job needs, once in each process of the cluster."""
    prepared: Work[Any] = pickle.loads(job).prepare()
    return prepared


def _lines(file: Path) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


@contextmanager
def cluster(executor: str, out: str | Path) -> Iterator[Remote]:
    """Connect to the cluster of an executor for a command whose output is not a results folder."""
    with RayCluster(ray_settings(executor), leave_out=[below_working_directory(out)]) as connected:
        yield Remote(connected)


@dataclass(frozen=True)
class Remote:
    """An `amc_agents.bench.executors.Cluster` on Ray."""

    cluster: RayCluster

    def rollouts(self, make: Callable[[], Rollouts]) -> Rollouts:
        """See `Cluster`."""
        pickled = pickle.dumps(make)

        async def rollouts(task: Task, seed: int) -> Sequence[Trajectory]:
            trajectories: Sequence[Trajectory] = await self.cluster.call(_play_there, pickled, task, seed)
            return trajectories

        return rollouts

    def values(self, critic: str, parts: Iterable[tuple[int, list[LoggedTrajectory]]]) -> Iterator[Evaluated]:
        """See `Cluster`. Some parts are scored ahead of the one that is read."""
        ahead = 2 * self.cluster.n_cpus
        waiting: deque[tuple[int, list[LoggedTrajectory], Any]] = deque()
        try:
            for number, records in parts:
                call = self.cluster.call(_score_there, critic, [record.trajectory for record in records])
                waiting.append((number, records, asyncio.run_coroutine_threadsafe(call, background_loop(1))))
                if len(waiting) > ahead:
                    yield _first(waiting)
            while waiting:
                yield _first(waiting)
        finally:
            for _, _, future in waiting:
                future.cancel()


def _first(waiting: deque[tuple[int, list[LoggedTrajectory], Any]]) -> Evaluated:
    number, records, future = waiting.popleft()
    return number, records, future.result()


def _play_there(make: bytes, task: Task, seed: int) -> Sequence[Trajectory]:
    return run_in_background(_awaited(_made(make), task, seed), n_workers=8)


async def _awaited(rollouts: Rollouts, task: Task, seed: int) -> Sequence[Trajectory]:
    return await rollouts(task, seed)


@lru_cache(maxsize=2)
def _made(make: bytes) -> Rollouts:
    rollouts: Rollouts = pickle.loads(make)()
    return rollouts


def _score_there(critic: str, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
    return state_values(_critic(critic), trajectories)


@lru_cache(maxsize=2)
def _critic(critic: str) -> Critic:
    return value_critic(critic)
