"""Run a job: execute its work items in this process or in worker processes, and store every result as it ends.

A worker claims an item, executes it, and completes it with its result. `FolderQueue` serves one process, and
`executors.SharedQueue` several that work on one folder.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from amc_agents.bench.results_folder import (
    ItemKey,
    ResultLine,
    ResultsFolder,
    ResultT,
    WorkItem,
    read_results,
    sole_run,
)
from amc_agents.concurrency.background import run_in_background
from amc_agents.concurrency.gather import side_by_side
from amc_agents.errors import AmcError

Execute = Callable[[WorkItem], Awaitable[ResultLine | None]]
"""Executes one work item; None: it failed and was recorded as a failure, so it has no result."""
CountCallback = Callable[[int], None]
"""Receives the number of results that are stored so far."""


class FolderQueue:
    """The work items that have no result yet, for the workers of one process.

    Args:
        items: what to execute, in this order.
        stored: keys of the results that exist already.
        folder: receives the results; open.
        progress: called at the start and after each change with the number of items that have a result.
    """

    def __init__(
        self,
        items: Sequence[WorkItem],
        stored: Collection[ItemKey],
        folder: ResultsFolder,
        progress: CountCallback | None = None,
    ) -> None:
        self._waiting = deque(item for item in items if item.key not in stored)
        self._n_ended = len(items) - len(self._waiting)
        self._folder, self._progress = folder, progress
        self._count(0)

    def claim(self) -> WorkItem | None:
        """Claim the next item for a worker; None when the queue is empty."""
        return self._waiting.popleft() if self._waiting else None

    def complete(self, item: WorkItem, result: ResultLine) -> None:
        """Append the result of a claimed item to the folder. It is durable when this returns."""
        if result.key != item.key:
            raise ValueError(f"expected the result of {item.key}, got the result of {result.key}")
        self._store(item, result)
        self._count(1)

    def give_up(self, item: WorkItem) -> None:
        """End a claimed item that has no result; its failure is recorded elsewhere."""

    def _store(self, item: WorkItem, result: ResultLine) -> None:
        self._folder.add(result)

    def _count(self, ended: int) -> None:
        self._n_ended += ended
        if self._progress is not None:
            self._progress(self._n_ended)


async def work_off(queue: FolderQueue, execute: Execute, *, n_concurrent: int) -> None:
    """Execute the items of a queue until it is empty.

    Args:
        queue: the items.
        execute: executes one item. Its first error cancels the other items and is raised.
        n_concurrent: items in progress at the same time.
    """

    async def worker() -> None:
        while (item := queue.claim()) is not None:
            await asyncio.sleep(0)  # An executor that never waits would otherwise leave no chance to cancel.
            result = await execute(item)
            if result is None:
                queue.give_up(item)
            else:
                queue.complete(item, result)

    await side_by_side(*(worker() for _ in range(n_concurrent)))


def share_of(items: Sequence[WorkItem], part: int, of: int) -> list[WorkItem]:
    """Return the items of every `of`-th task, starting with task number `part`."""
    tasks = list(dict.fromkeys(item.task for item in items))
    share = set(tasks[part::of])
    return [item for item in items if item.task in share]


class Work(Protocol[ResultT]):
    """A set of work items, with everything that this process needs to execute them."""

    def items(self) -> Sequence[WorkItem]:
        """Return all items, in the order of the results."""
        ...

    def folder(self, out: str | Path, *, resume: bool, worker: str = "") -> ResultsFolder:
        """Return the results folder, checked against the settings of this work."""
        ...

    def parse(self, values: Mapping[str, Any]) -> ResultT:
        """Read a stored result. Raises `KeyError` or `TypeError` for other values."""
        ...

    def executor(self, out: str | Path, worker: str) -> AbstractContextManager[Execute]:
        """Return the function that executes an item. What it needs stays open inside the `with` block."""
        ...


class Job(Protocol[ResultT]):
    """Plain values from which any process can prepare the same work: it is pickled to worker processes."""

    @property
    def command(self) -> str:
        """The command that runs the job, for errors."""
        ...

    def prepare(self) -> Work[ResultT]:
        """Load what the work needs into this process."""
        ...


def run_job(
    job: Job[ResultT],
    out: str | Path,
    *,
    resume: bool = False,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
) -> list[ResultT]:
    """Execute every item of a job that `out` has no result of.

    Args:
        job: what to execute.
        out: the results folder.
        resume: continue with the results in `out`.
        n_workers: number of processes; each executes its share of the tasks.
        n_concurrent: items in progress at the same time in each process.
        progress: called with the number of stored results, from time to time.

    Returns:
        All results of the job, including those of earlier calls.

    Raises:
        ConfigurationError: `out` holds results and `resume` is not set, or results with other settings, or another run
            is using it.
        AmcError: a worker process failed; finished results are kept.
    """
    work = job.prepare()
    with sole_run(out, doing=job.command):
        work.folder(out, resume=resume)
        n_workers = min(n_workers, len({item.task for item in work.items()}))
        if n_workers > 1:
            shares = [(job, str(out), part, n_workers, n_concurrent) for part in range(n_workers)]
            in_processes(_execute_share, shares, progress, lambda: len(results_of(work, out)))
        else:
            # The background loop outlives this call, as the connections of models and critics must.
            executing = execute_work(work, out, resume=True, n_concurrent=n_concurrent, progress=progress)
            run_in_background(executing, n_workers=n_concurrent)
        return results_of(work, out)


async def execute_work(
    work: Work[ResultT],
    out: str | Path,
    *,
    resume: bool,
    n_concurrent: int,
    items: Sequence[WorkItem] | None = None,
    worker: str = "",
    progress: CountCallback | None = None,
) -> None:
    """Execute, in this process, the items that `out` has no result of.

    Args:
        work: what to execute.
        out: the results folder.
        resume: continue with the results in `out`.
        n_concurrent: items in progress at the same time.
        items: a share of the items; None: all.
        worker: names this process's file in a folder that several share.
        progress: called with the number of stored results among `items`.
    """
    with work.folder(out, resume=resume, worker=worker) as folder, work.executor(out, worker) as execute:
        stored = {result.key for result in read_results(out, work.parse)}
        queue = FolderQueue(work.items() if items is None else items, stored, folder, progress)
        await work_off(queue, execute, n_concurrent=n_concurrent)


def results_of(work: Work[ResultT], out: str | Path) -> list[ResultT]:
    """Return the stored results of the work, in the order of its items."""
    by_key = {result.key: result for result in read_results(out, work.parse)}
    return [by_key[item.key] for item in work.items() if item.key in by_key]


def in_processes(
    function: Callable[..., None],
    arguments: Sequence[tuple[Any, ...]],
    progress: CountCallback | None,
    count: Callable[[], int],
) -> None:
    """Call a function in several processes at the same time, and wait for all of them.

    Args:
        function: a function of a module, so that it can be pickled.
        arguments: the arguments of each process; its `AmcError` does not stop the others.
        progress: called with `count()` from time to time.
        count: returns the number of stored results.

    Raises:
        AmcError: a process failed.
    """
    # Spawned, not forked: this process may have threads (of BLAS, of an event loop).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(arguments), mp_context=context, initializer=_end_with_parent) as pool:
        shares = [pool.submit(_error_of, function, *each) for each in arguments]
        running: Collection[Future[str | None]] = shares
        while running:
            started = time.perf_counter()
            if progress is not None:
                progress(count())
            # Counting reads all results. The wait keeps it below a twentieth of the time, however many there are.
            running = wait(shares, timeout=max(0.2, 20 * (time.perf_counter() - started))).not_done
    for share in shares:
        try:
            error = share.result()
        except BrokenProcessPool:
            error = "a process was killed, perhaps for lack of memory: continue with --resume, and fewer --workers"
        if error is not None:
            raise AmcError(f"a worker failed, and what was finished is kept: {error}")
    if progress is not None:
        progress(count())


def _error_of(function: Callable[..., None], *arguments: Any) -> str | None:
    """Call a function. Returns the message of an `AmcError`, since not every error can be pickled."""
    try:
        function(*arguments)
    except AmcError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _execute_share(job: Job[ResultT], out: str, part: int, of: int, n_concurrent: int) -> None:
    """Execute one process's share."""
    work = job.prepare()
    items = share_of(work.items(), part, of)
    worker = f"{part}-of-{of}"
    asyncio.run(execute_work(work, out, resume=True, n_concurrent=n_concurrent, items=items, worker=worker))


def _end_with_parent() -> None:
    """End this worker process when its parent is killed; otherwise it would keep writing to the folder."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
