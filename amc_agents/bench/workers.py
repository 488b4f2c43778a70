"""Runs a plan in several processes: the tasks are dealt out, each process keeps its results in a file of its own."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from amc_agents.bench.plan import ComparisonPlan
from amc_agents.bench.records import ResultsFolder, RunResult, sole_run
from amc_agents.bench.runner import Comparison, compare, records_of
from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import AmcError

Progress = Callable[[int], None]
"""Called with the number of the plan's runs that are kept so far, from time to time."""


def run_plan(
    plan: ComparisonPlan,
    out: str | Path,
    *,
    resume: bool = False,
    n_workers: int = 1,
    n_concurrent: int = 8,
    progress: Progress | None = None,
    keep_decisions: bool = False,
) -> list[RunResult]:
    """Every run of a plan that `out` does not hold yet.

    Args:
        plan: what to run.
        out: the results folder.
        resume: go on with what `out` holds.
        n_workers: processes; each plays its share of the tasks.
        n_concurrent: runs at the same time in each process.
        progress: called when there is something new.
        keep_decisions: keep every decision too, in the same folder.

    Returns:
        The plan's records, those of earlier calls included.

    Raises:
        ConfigurationError: `out` holds results and `resume` is not set, or results of other settings; or another run
            is using it.
        AmcError: a worker failed; what was finished is kept.
    """
    comparison = plan.comparison()
    with sole_run(out, doing="amc bench"):
        return _run_plan(plan, comparison, out, resume, n_workers, n_concurrent, progress, keep_decisions)


def _run_plan(
    plan: ComparisonPlan,
    comparison: Comparison,
    out: str | Path,
    resume: bool,
    n_workers: int,
    n_concurrent: int,
    progress: Progress | None,
    keep_decisions: bool,
) -> list[RunResult]:
    ResultsFolder(out, comparison.settings, comparison.method_settings, resume=resume)
    n_workers = min(n_workers, len(comparison.tasks))

    if n_workers == 1:
        kept = count(len(records_of(comparison, out)))
        tell = progress or (lambda done: None)
        tell(next(kept))
        with quiet_about_twins():
            # On the loop that stays: a critic's connections belong to one loop, and a run may be drawn afterwards.
            run_in_background(
                compare(
                    comparison,
                    out,
                    resume=True,
                    n_concurrent=n_concurrent,
                    progress=lambda record, run: tell(next(kept)),
                    keep_decisions=keep_decisions,
                ),
                n_workers=n_concurrent,
            )
        return records_of(comparison, out)
    # Spawned, not forked: the parent may have threads (of BLAS, of an event loop).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(n_workers, mp_context=context, initializer=end_with_parent) as pool:
        working = [
            pool.submit(_work, plan, str(out), part, n_workers, n_concurrent, keep_decisions)
            for part in range(n_workers)
        ]
        running: Collection[Future[str | None]] = working
        while running:
            begun = time.perf_counter()
            if progress is not None:
                progress(len(records_of(comparison, out)))
            # Every look reads all that is kept: it may take a twentieth of the time, however much that has become.
            running = wait(working, timeout=max(0.2, 20 * (time.perf_counter() - begun))).not_done
    _raise_first(working)
    records = records_of(comparison, out)
    if progress is not None:
        progress(len(records))
    return records


def end_with_parent() -> None:
    """End this worker process when its parent is killed: it would go on writing, and hold the folder."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


@contextmanager
def quiet_about_twins() -> Iterator[None]:
    """Let easy tasks, on which all particles say the same, pass without a word: the records' notes have it."""
    log = logging.getLogger("amc_agents.population.population")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def _work(plan: ComparisonPlan, out: str, part: int, of: int, n_concurrent: int, keep_decisions: bool) -> str | None:
    """One process's share; the sentence of an error of ours, for not all of them can be sent between processes."""
    comparison = plan.comparison(plan.tasks(part, of))
    try:
        with quiet_about_twins():
            work = compare(
                comparison, out, resume=True, n_concurrent=n_concurrent, worker=f"{part}-of-{of}",
                keep_decisions=keep_decisions,
            )  # fmt: skip
            asyncio.run(work)
    except AmcError as error:
        return f"{type(error).__name__}: {error}"
    return None


def _raise_first(working: list[Future[str | None]]) -> None:
    for one in working:
        told = one.result()
        if told is not None:
            raise AmcError(f"a worker failed, and what was finished is kept: {told}")
