"""Several processes that share one results folder: each claims items, and takes over those of processes that died."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from amc_agents.bench.claims import LEASE_S, Claim, Claims
from amc_agents.bench.engine import Job, Work, in_processes, results_of
from amc_agents.bench.results_folder import ResultsFolder, entering, read_results
from amc_agents.bench.work import CountCallback, ItemKey, ResultLine, ResultT, WorkItem, work_off
from amc_agents.concurrency.background import run_in_background

_POLL_S = 0.5
"""Seconds between looks at items that other processes hold."""


class SharedQueue:
    """The work items that have no result yet, for one of the processes that share a folder.

    Args:
        items: what to execute, in this order.
        stored: keys of the results that existed when this process had opened `claims`.
        folder: receives the results; open.
        claims: the leases of this process; open.
        reread: returns the keys of all results of the folder.
        progress: called at the start and after each change with the number of items that have ended.
    """

    def __init__(
        self,
        items: Sequence[WorkItem],
        stored: Collection[ItemKey],
        folder: ResultsFolder,
        claims: Claims,
        reread: Callable[[], Collection[ItemKey]],
        progress: CountCallback | None = None,
    ) -> None:
        self._waiting = deque(item for item in items if item.key not in stored)
        self._held_by_others: list[WorkItem] = []
        self._n_ended = len(items) - len(self._waiting)
        self._folder, self._claims, self._reread, self._progress = folder, claims, reread, progress
        self._count(0)

    def claim(self) -> WorkItem | None:
        """Claim the next item; None when every item has ended or is held by another process."""
        while self._waiting:
            item = self._waiting.popleft()
            answer = self._claims.take(item.key)
            if answer is Claim.HELD:
                self._held_by_others.append(item)
            elif answer is Claim.ENDED:
                self._count(1)
            elif answer is Claim.RECLAIMED and item.key in self._reread():
                self.give_up(item)
            else:
                return item
        return None

    def complete(self, item: WorkItem, result: ResultLine) -> None:
        """Append the result of a claimed item to the folder."""
        if result.key != item.key:
            raise ValueError(f"expected the result of {item.key}, got the result of {result.key}")
        # If this process was suspended for longer than its lease, another has executed the item.
        if self._claims.holds(item.key):
            self._folder.add(result)
        self.give_up(item)

    def give_up(self, item: WorkItem) -> None:
        """End a claimed item that needs no result of this process."""
        self._claims.end(item.key)
        self._count(1)

    def look_again(self) -> bool:
        """Queue the items that other processes held, once more. False if there are none: every item has ended."""
        self._waiting.extend(self._held_by_others)
        self._held_by_others.clear()
        return bool(self._waiting)

    def _count(self, ended: int) -> None:
        self._n_ended += ended
        if self._progress is not None:
            self._progress(self._n_ended)


def run_shared(
    job: Job[ResultT],
    out: str | Path,
    *,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: CountCallback | None = None,
    lease: float = LEASE_S,
) -> list[ResultT]:
    """Execute a job in a folder that other calls use at the same time; return when all items have ended.

    Every call continues with the results in the folder. A call may be killed at any time: others, or a later call,
    execute its unfinished items when their leases have expired.

    Args:
        job: what to execute.
        out: the results folder.
        n_workers: number of processes of this call.
        n_concurrent: items in progress at the same time in each process.
        progress: called with the number of ended items, from time to time.
        lease: seconds until the items of a process that died are free again.

    Returns:
        All results of the job, whoever executed the items.

    Raises:
        ConfigurationError: `out` holds results with other settings, or a run that does not share it is using it.
        AmcError: a worker process failed; finished results are kept.
    """
    work = job.prepare()
    if n_workers > 1:
        arguments = [(job, str(out), n_concurrent, lease) for _ in range(n_workers)]
        in_processes(_share_in_process, arguments, progress, lambda: len(results_of(work, out)))
    else:
        sharing = _share(work, out, job.command, n_concurrent, lease, progress)
        run_in_background(sharing, n_workers=n_concurrent)
    return results_of(work, out)


async def _share(
    work: Work[ResultT],
    out: str | Path,
    command: str,
    n_concurrent: int,
    lease: float,
    progress: CountCallback | None = None,
) -> None:
    """Execute items in this process until every item of the work has ended, here or elsewhere."""
    worker = f"shared-{os.getpid()}-{secrets.token_hex(3)}"

    def stored() -> set[ItemKey]:
        return {result.key for result in read_results(out, work.parse)}

    with ExitStack() as stack:
        with entering(out, doing=command):
            folder = stack.enter_context(work.folder(out, resume=True, worker=worker))
        claims = stack.enter_context(Claims(out, worker, lease=lease))
        execute = stack.enter_context(work.executor(out, worker))
        queue = SharedQueue(work.items(), stored(), folder, claims, stored, progress)
        while True:
            await work_off(queue, execute, n_concurrent=n_concurrent)
            if not queue.look_again():
                return
            await asyncio.sleep(min(_POLL_S, lease / 4))


def _share_in_process(job: Job[ResultT], out: str, n_concurrent: int, lease: float) -> None:
    asyncio.run(_share(job.prepare(), out, job.command, n_concurrent, lease))
