"""Execute a job on a Ray cluster. Only this process writes the results folder; the cluster returns lines to store."""

from __future__ import annotations

import json
import pickle
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from amc_agents.bench.engine import Job, Work, execute_work, results_of
from amc_agents.bench.failures import FailedRun, FailuresFile, described
from amc_agents.bench.results_folder import ResultsFolder, sole_run
from amc_agents.bench.software import software
from amc_agents.bench.work import CountCallback, ResultT, WorkItem
from amc_agents.concurrency.background import run_in_background
from amc_agents.concurrency.gather import side_by_side
from amc_agents.concurrency.ray_cluster import LostCall, RayCluster, RaySettings
from amc_agents.errors import ConfigurationError
from amc_agents.files import JsonLinesFile

Lines = Mapping[str, Sequence[Mapping[str, Any]]]
"""Name of a file of a results folder -> its lines."""
_RECORDS, _FAILURES = "records.jsonl", "failures.jsonl"


def run_on_ray(
    job: Job[ResultT],
    out: str | Path,
    settings: RaySettings,
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
        settings: which cluster, what each call reserves, and what is shipped.
        resume: continue with the results in `out`.
        n_concurrent: items of a call in progress at the same time.
        progress: called with the number of stored results after each call.

    Returns:
        All results of the job, including those of earlier calls.

    Raises:
        ConfigurationError: as `engine.run_job`; or there is no cluster, or a machine has other versions installed.
        AmcError: an item failed, and the job does not record failures; finished results are kept.
    """
    work = job.prepare()
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
            self._failures = self._open.enter_context(FailuresFile(self._out))
            self._files: dict[str, JsonLinesFile] = {}
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


def below_working_directory(path: str | Path) -> str:
    """Return a path as a pattern of files that are not shipped, relative to the working directory if it is below."""
    resolved = Path(path).resolve()
    return f"/{resolved.relative_to(Path.cwd())}" if resolved.is_relative_to(Path.cwd()) else str(resolved)
