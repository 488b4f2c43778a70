"""Everything that needs Ray (extra: ray): call functions on a cluster; execute a job, collect and score there.

Only this process writes results folders, datasets and score files; the cluster returns lines and values to store. The
rest of the library knows nothing of Ray.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from amc_agents.bench.engine import CountCallback, Job, Work, execute_work, results_of
from amc_agents.bench.results_folder import ResultsFolder, ResultT, WorkItem, software, sole_run
from amc_agents.bench.run_files import FailedRun, Failures, described
from amc_agents.concurrency.background import background_loop, run_in_background
from amc_agents.concurrency.gather import side_by_side
from amc_agents.errors import AmcError, ConfigurationError, MissingExtra
from amc_agents.files import JsonLinesFile
from amc_agents.quoting import quoted
from amc_agents.training.collecting import Rollouts
from amc_agents.training.dataset import LoggedTrajectory
from amc_agents.training.scoring import Evaluated, state_values, value_critic
from amc_agents.types import Critic, FloatArray, Task, Trajectory

LOCAL = "local"
"""The address of a cluster that is started on this machine for one command."""
RETRIES = 20
"""Number of times that Ray repeats a call whose process or machine died."""
_PATIENCE_S = 10.0
_SUBMITTED = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Set by `ray job submit`, whose runtime environment precedes ours."""
_LEFT_OUT = (".git", ".venv", "venv", "node_modules", "__pycache__", "*.sqlite")


@dataclass(frozen=True)
class RaySettings:
    """How to use a cluster."""

    address: str = "auto"
    """"auto" (the cluster that this machine belongs to), "host:port", "ray://host:port", or "local"."""
    num_cpus: float = 1.0
    """CPUs that each call reserves."""
    num_gpus: float = 0.0
    """GPUs that each call reserves; a fraction shares a GPU."""
    resources: Mapping[str, float] = field(default_factory=dict)
    """Custom resources that each call reserves."""
    working_dir: str | None = "."
    """Folder or URI that Ray ships to every machine, models below it included; None: every machine has the files."""


def ray_settings(executor: str) -> RaySettings | None:
    """Read the settings of an executor `ray[:ADDRESS][?OPTION=VALUE&...]`; None for other executors.

    Options: `num_cpus`, `num_gpus`, `working_dir` (a folder, a URI, or "none"); any other name is a custom resource.

    Raises:
        ConfigurationError: there is no such executor, or an amount is not a number.
    """
    name, _, options = executor.partition("?")
    kind, _, address = name.partition(":")
    if executor in ("processes", "shared"):
        return None
    if kind != "ray":
        raise ConfigurationError(
            f"no executor {quoted(executor)}: expected processes, shared, ray or ray:ADDRESS?num_cpus=2"
        )
    given = dict(parse_qsl(options, keep_blank_values=True))
    folder = given.pop("working_dir", ".")
    amounts = {option: _amount(option, text) for option, text in given.items()}
    return RaySettings(
        address=address or "auto",
        num_cpus=amounts.pop("num_cpus", 1.0),
        num_gpus=amounts.pop("num_gpus", 0.0),
        resources=amounts,
        working_dir=None if folder == "none" else folder,
    )


def _amount(option: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount < float("inf"):
        raise ConfigurationError(
            f"--executor ray: {option}={quoted(text, 40)} is not an amount: expected a number, as 0.5"
        )
    return amount


class LostCall(AmcError):
    """The process or the machine of a call died more often than Ray repeats a call.

    Remedy: Look for a machine without memory in `ray status`, and reserve more for a call (`num_cpus`).
    """


class RayCluster:
    """A connection to a cluster. A context manager.

    Args:
        settings: which cluster, what a call reserves, and what is shipped.
        leave_out: files and folders below the working directory that are not shipped, in gitignore's syntax.

    Raises:
        MissingExtra: Ray is not installed.
        ConfigurationError: no cluster has the address, or the working directory cannot be shipped.
    """

    def __init__(self, settings: RaySettings, leave_out: Sequence[str] = ()) -> None:
        self._ray, self._settings = _import_ray(), settings
        self._leave_out = [*_LEFT_OUT, *leave_out]
        self._connected = False

    def __enter__(self) -> RayCluster:
        if not self._ray.is_initialized():
            self._connect()
            self._connected = True
        self._remote = self._ray.remote(_outcome).options(
            num_cpus=self._settings.num_cpus,
            num_gpus=self._settings.num_gpus,
            resources=dict(self._settings.resources) or None,
            max_retries=RETRIES,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._connected:
            self._ray.shutdown()

    @property
    def n_cpus(self) -> int:
        """Number of the cluster's CPUs now; an autoscaler may add more."""
        return int(self._ray.cluster_resources().get("CPU", 1))

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of a module on the cluster and return its result. Cancelling the call ends it there.

        Raises:
            LostCall: the process or the machine of the call died too often.
            Exception: whatever the function raised.
        """
        reference = self._remote.remote(function, *arguments)
        try:
            outcome: _Outcome = await reference
        except asyncio.CancelledError:
            with suppress(Exception):
                self._ray.cancel(reference, force=True)
            raise
        except self._ray.exceptions.RayError as error:
            raise LostCall(f"Ray lost a call {RETRIES} times: {str(error).splitlines()[0]}") from error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _connect(self) -> None:
        address = self._settings.address
        where = {} if address == LOCAL else {"address": address}
        try:
            _check_reachable(address)
            with _shipping_ignored_files():
                self._ray.init(**where, runtime_env=self._environment(), log_to_driver=False, logging_level="ERROR")
        except OSError as error:
            raise ConfigurationError(
                f"no Ray cluster at {address}: start a cluster (ray start --head), name its address "
                "(--executor ray:HOST:PORT), or try on this machine (--executor ray:local)"
            ) from error
        except (ValueError, RuntimeError, self._ray.exceptions.RuntimeEnvSetupError) as error:
            raise ConfigurationError(f"Ray refuses the cluster's settings: {str(error)[:300]}") from error

    def _environment(self) -> dict[str, Any]:
        folder = self._settings.working_dir
        if folder is None or _SUBMITTED in os.environ:
            return {}
        if "://" not in folder and not Path(folder).is_dir():
            raise ConfigurationError(f"working_dir={folder} is not a folder: expected a folder or a URI")
        return {"working_dir": folder, "excludes": self._leave_out}


def _check_reachable(address: str) -> None:
    """Raise an `OSError` if nothing listens at `host:port`: Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_PATIENCE_S).close()


class _Outcome(NamedTuple):
    value: Any
    error: Exception | None


def _outcome(function: Callable[..., Any], *arguments: Any) -> _Outcome:
    """Call a function on the cluster. Its error is returned, because Ray would wrap it."""
    try:
        return _Outcome(function(*arguments), None)
    except Exception as error:
        return _Outcome(None, _picklable(error))


def _picklable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return AmcError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _shipping_ignored_files() -> Any:
    """Make Ray ship what git ignores: models and data usually are."""
    name = "RAY_RUNTIME_ENV_IGNORE_GITIGNORE"
    before = os.environ.get(name)
    os.environ[name] = before or "1"
    try:
        yield
    finally:
        os.environ.pop(name) if before is None else None


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise MissingExtra("ray", "ray") from error
    return ray


@contextmanager
def cluster_of(executor: str, out: str | Path) -> Iterator[RayCluster | None]:
    """Connect to the Ray cluster of an executor for a command whose output is not a results folder; None: no cluster.

    Raises:
        ConfigurationError: there is no such executor, or it is "shared", which needs a results folder.
    """
    settings = ray_settings(executor)
    if executor == "shared":
        raise ConfigurationError("--executor shared is for amc bench and amc tune: use processes or ray")
    if settings is None:
        yield None
        return
    with RayCluster(settings, leave_out=[below_working_directory(out)]) as cluster:
        yield cluster


def below_working_directory(path: str | Path) -> str:
    """Return a path as a pattern of files that are not shipped, relative to the working directory if it is below."""
    resolved = Path(path).resolve()
    return f"/{resolved.relative_to(Path.cwd())}" if resolved.is_relative_to(Path.cwd()) else str(resolved)


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


def remote_rollouts(cluster: RayCluster, make: Callable[[], Rollouts]) -> Rollouts:
    """Return rollouts that play each task on a cluster.

    Args:
        cluster: where to play.
        make: makes the rollouts in a process of the cluster; picklable.
    """
    pickled = pickle.dumps(make)

    async def rollouts(task: Task, seed: int) -> Sequence[Trajectory]:
        trajectories: Sequence[Trajectory] = await cluster.call(_play_there, pickled, task, seed)
        return trajectories

    return rollouts


def remote_values(
    cluster: RayCluster, critic: str, parts: Iterable[tuple[int, list[LoggedTrajectory]]]
) -> Iterator[Evaluated]:
    """Score parts of a dataset on a cluster, some ahead of the part that is read.

    Args:
        cluster: where to score.
        critic: the critic's string; each process of the cluster builds it once.
        parts: number and records of each part.

    Yields:
        Number, records and values of each part, in their order.
    """
    ahead = 2 * cluster.n_cpus
    waiting: deque[tuple[int, list[LoggedTrajectory], Any]] = deque()
    try:
        for number, records in parts:
            call = cluster.call(_score_there, critic, [record.trajectory for record in records])
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
