"""Where a job is executed: in processes of this command, in a folder that several commands share, or on Ray.

processes                            worker processes of this command alone (--workers)
shared                               as processes, and every further command that names the folder helps
ray                                  the Ray cluster that this machine belongs to
ray:HOST:PORT?num_cpus=2&num_gpus=0.5&accelerator=1&working_dir=FOLDER
ray:local                            Ray, started on this machine for the command
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl

from amc_agents.bench.engine import Job, run_job
from amc_agents.bench.on_ray import below_working_directory, run_on_ray
from amc_agents.bench.shared import run_shared
from amc_agents.bench.work import CountCallback, ResultT
from amc_agents.concurrency.ray_cluster import RayCluster, RaySettings
from amc_agents.errors import ConfigurationError
from amc_agents.quoting import quoted

PROCESSES, SHARED, RAY = "processes", "shared", "ray"


def ray_settings(executor: str) -> RaySettings | None:
    """Read the settings of an executor `ray[:ADDRESS][?OPTION=VALUE&...]`; None for other executors.

    Options: `num_cpus`, `num_gpus`, `working_dir` (a folder, a URI, or "none"); any other name is a custom resource.

    Raises:
        ConfigurationError: there is no such executor, or an amount is not a number.
    """
    name, _, options = executor.partition("?")
    kind, _, address = name.partition(":")
    if executor in (PROCESSES, SHARED):
        return None
    if kind != RAY:
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


def execute_job(
    job: Job[ResultT],
    out: str | Path,
    *,
    executor: str = PROCESSES,
    resume: bool = False,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
) -> list[ResultT]:
    """Execute every item of a job that `out` has no result of. The results are the same with every executor.

    Args:
        job: what to execute.
        out: the results folder.
        executor: "processes", "shared" (which implies `resume`), or "ray..."; see this module.
        resume: continue with the results in `out`.
        n_workers: number of processes; not used by Ray.
        n_concurrent: items in progress at the same time in each process.
        progress: called with the number of stored results, from time to time.

    Raises:
        ConfigurationError: there is no such executor; else as `run_job`, `run_shared` and `run_on_ray`.
    """
    settings = ray_settings(executor)
    if settings is not None:
        return run_on_ray(job, out, settings, resume=resume, n_concurrent=n_concurrent, progress=progress)
    if executor == SHARED:
        return run_shared(job, out, n_workers=n_workers, n_concurrent=n_concurrent, progress=progress)
    return run_job(job, out, resume=resume, n_workers=n_workers, n_concurrent=n_concurrent, progress=progress)


@contextmanager
def cluster_of(executor: str, out: str | Path) -> Iterator[RayCluster | None]:
    """Connect to the Ray cluster of an executor for a command whose output is not a results folder; None: no cluster.

    Raises:
        ConfigurationError: there is no such executor, or it is "shared", which needs a results folder.
    """
    settings = ray_settings(executor)
    if executor == SHARED:
        raise ConfigurationError("--executor shared is for amc bench and amc tune: use processes or ray")
    if settings is None:
        yield None
        return
    with RayCluster(settings, leave_out=[below_working_directory(out)]) as cluster:
        yield cluster


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
