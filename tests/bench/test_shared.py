"""Several processes on one results folder: leases, reclaiming, and nothing repeated or lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from amc_agents.bench import executors
from amc_agents.bench.engine import run_job
from amc_agents.bench.executors import LEASE_S, Claim, Claims, SharedQueue, run_shared
from amc_agents.bench.results_folder import CLAIMS, ResultsFolder, sole_run
from amc_agents.bench.run_files import failed_runs
from amc_agents.errors import ConfigurationError, StorageError
from tests.bench.tally import Line

ITEM, OTHER = ("method", "0", 0), ("method", "1", 0)


class Clock:
    """Seconds that pass only when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def stored(tally, out):
    return [result.task for result in run_shared(replace(tally, n=6), out)]


def test_an_item_has_one_owner_until_its_lease_expires(tmp_path, clock):
    with Claims(tmp_path, "a", clock=clock) as first, Claims(tmp_path, "b", clock=clock) as second:
        assert (first.take(ITEM), first.take(OTHER)) == (Claim.FREE, Claim.FREE)
        assert second.take(ITEM) is Claim.HELD
        clock.now += LEASE_S - 1
        first.extend()
        clock.now += LEASE_S - 1
        assert second.take(ITEM) is Claim.HELD
        clock.now += 2
        assert second.take(ITEM) is Claim.RECLAIMED
        assert (first.holds(ITEM), second.holds(ITEM)) == (False, True)
        first.end(ITEM)
        assert second.holds(ITEM)  # only its owner can end it


def test_an_item_that_ended_is_free_only_for_later_processes(tmp_path, clock):
    with Claims(tmp_path, "a", clock=clock) as first, Claims(tmp_path, "b", clock=clock) as second:
        first.take(ITEM)
        clock.now += 1
        first.end(ITEM)
        assert (first.take(ITEM), second.take(ITEM)) == (Claim.ENDED, Claim.ENDED)
        clock.now += 1
        with Claims(tmp_path, "c", clock=clock) as third:
            assert third.take(ITEM) is Claim.FREE


def test_a_process_that_ends_frees_what_it_holds(tmp_path, clock):
    with Claims(tmp_path, "b", clock=clock) as second:
        with Claims(tmp_path, "a", clock=clock) as first:
            first.take(ITEM)
            assert second.take(ITEM) is Claim.HELD
        assert second.take(ITEM) is Claim.FREE


def test_a_heartbeat_extends_the_lease(tmp_path, monkeypatch):
    beaten = []

    def extend(claims):
        beaten.append(claims)
        claims._ending.set()

    monkeypatch.setattr(Claims, "extend", extend)
    with Claims(tmp_path, "a", lease=0.01) as claims:
        claims._heart.join()
    assert beaten == [claims]


def test_a_damaged_file_is_named_with_its_remedy(tmp_path):
    (tmp_path / CLAIMS).write_text("no database" * 100)
    with pytest.raises(StorageError, match=r"claims\.sqlite: .*delete the file"), Claims(tmp_path, "a"):
        pass


def queue_on(folder, tally, claims, reread=tuple, progress=None):
    return SharedQueue(tally.items(), (), folder, claims, reread, progress)


def test_what_a_dead_process_has_stored_is_not_executed_again(tmp_path, tally, clock):
    with Claims(tmp_path, "dead", clock=clock) as dead, Claims(tmp_path, "b", clock=clock) as claims:
        dead.take(ITEM), dead.take(OTHER)
        with ResultsFolder(tmp_path, {}, {}) as folder:
            counted = []
            queue = queue_on(folder, replace(tally, n=2), claims, lambda: {ITEM}, counted.append)
            assert queue.claim() is None
            assert queue.look_again()
            clock.now += LEASE_S + 1
            assert queue.claim().key == OTHER
            assert queue.claim() is None
            assert not queue.look_again()
            assert counted == [0, 1]


def test_a_process_that_was_suspended_stores_nothing_twice(tmp_path, tally, clock):
    with (
        Claims(tmp_path, "a", clock=clock) as first,
        Claims(tmp_path, "b", clock=clock) as second,
        ResultsFolder(tmp_path, {}, {}) as folder,
    ):
        item = tally.items()[0]
        queue = queue_on(folder, tally, first)
        assert queue.claim() == item
        clock.now += LEASE_S + 1
        assert second.take(item.key) is Claim.RECLAIMED
        queue.complete(item, Line(*item.key))
    assert (tmp_path / "records.jsonl").read_text() == ""


async def test_two_that_share_a_folder_execute_each_item_once(tmp_path, tally):
    out, counted = tmp_path / "out", []
    await asyncio.gather(
        *(executors._share(tally, out, "amc bench", 2, 60.0, progress) for progress in (counted.append, None))
    )
    assert sorted(tally.executed()) == list("012345")
    assert counted[-1] == 6
    assert len(list(out.glob("records-shared-*.jsonl"))) == 2
    assert stored(tally, out) == list("012345")
    assert len(tally.executed()) == 6


def test_failures_are_neither_lost_nor_repeated_within_a_run(tmp_path, tally):
    tally, out = replace(tally, failing=("2", "4")), tmp_path / "out"
    for runs in (1, 2):  # the next run executes failed items again
        done = run_shared(tally, out)
        assert [result.task for result in done] == list("0135")
        assert tally.executed().count("2") == runs
    failures = failed_runs(out, tally.items(), [result.key for result in done])
    assert [(failure.task, failure.error) for failure in failures] == [
        (task, f"ValueError: task {task} is broken") for task in "24"
    ]


def test_shared_and_exclusive_runs_refuse_each_other(tmp_path, tally):
    out = tmp_path / "out"
    with sole_run(out, doing="amc bench"), pytest.raises(ConfigurationError, match="in use by another process"):
        run_shared(tally, out)
    run_shared(tally, out)
    with (
        ResultsFolder(out, {"n": "any"}, {}, resume=True, worker="shared-1-2"),
        pytest.raises(ConfigurationError, match="a worker of an earlier amc bench"),
    ):
        run_job(tally, out, resume=True)
    assert len(run_job(tally, out, resume=True)) == 6
    assert len(tally.executed()) == 6


KILLED = """
import os, signal, sys
from amc_agents.bench.executors import Claims
from amc_agents.bench.executors import run_shared
from tests.bench.tally import Tally

def stop(claims, item):
    os.kill(os.getpid(), signal.SIGKILL)

Claims.end = stop
run_shared(Tally(sys.argv[1]), sys.argv[2], n_concurrent=3)
"""


@pytest.mark.thorough
def test_killed_between_a_result_and_the_end_of_its_claim(tmp_path, tally, repository):
    out = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, tally.log, str(out)]
    killed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(repository)}, check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert tally.executed()[0] == "0"
    in_progress = len(tally.executed())
    with closing(sqlite3.connect(out / CLAIMS)) as claims, claims:  # instead of waiting for a minute
        claims.execute("UPDATE claims SET expires = 0")
    results = run_shared(tally, out)
    assert [result.task for result in results] == list("012345")
    assert tally.executed().count("0") == 1  # its result was stored
    assert len(tally.executed()) == 6 + in_progress - 1
