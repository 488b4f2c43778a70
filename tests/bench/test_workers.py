"""Progress, worker processes and locks of `run_plan`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from amc_agents.bench.engine import run_job
from amc_agents.bench.methods import Tuned, best_of_n, react
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.records import read_run_results
from amc_agents.bench.results_folder import read_results
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import sole_user

PLAN = ComparisonPlan(methods=(react(Tuned()), best_of_n(Tuned())), n_tasks=3, band=(2, 3), n_particles=2, plain=True)


def folder_reads(monkeypatch):
    """Record each time that the whole folder is read."""
    reads = []

    def counting(out, parse):
        reads.append(out)
        return read_results(out, parse)

    monkeypatch.setattr("amc_agents.bench.engine.read_results", counting)
    return reads


def test_one_process_counts_its_runs_without_reading_the_folder_each_time(tmp_path, monkeypatch, tally):
    reads, told = folder_reads(monkeypatch), []
    run_job(tally, tmp_path / "out", n_concurrent=1, progress=told.append)
    assert told == list(range(7))
    assert len(reads) < 6


@pytest.mark.thorough
def test_several_processes_report_their_common_progress(tmp_path):
    told = []
    records = run_plan(PLAN, tmp_path, n_workers=2, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == len(records) == 6


BENCH = """
from pathlib import Path
import sys
from amc_agents.bench.plan import run_plan
from tests.bench.test_workers import LONG

if __name__ == "__main__":
    run_plan(LONG, sys.argv[1], n_workers=2)
"""
LONG = replace(PLAN, n_tasks=20, seeds=tuple(range(50)))


def alive(pid):
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.thorough
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found by Linux's /proc")
def test_workers_end_with_a_bench_that_is_killed_and_a_second_bench_is_refused_while_it_runs(tmp_path, repository):
    out = tmp_path / "results"
    script = tmp_path / "play.py"
    script.write_text(BENCH)
    command = [sys.executable, str(script), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as bench:
        while not read_run_results(out):  # both processes have started by then, or start right after
            assert bench.poll() is None, bench.stderr.read()
            time.sleep(0.1)
        children = [int(pid) for pid in Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()]
        assert len(children) >= 2
        with pytest.raises(ConfigurationError, match=r"in use by another process \(amc bench\)"):
            run_plan(PLAN, out, resume=True)
        bench.kill()
        bench.wait()
    while any(map(alive, children)):  # nothing else ends them
        time.sleep(0.1)
    kept = len(read_run_results(out))
    assert kept >= 1
    with pytest.raises(ConfigurationError, match="made with other settings"):  # the folder is free again
        run_plan(replace(PLAN, n_particles=3), out, resume=True)


def test_a_worker_that_still_writes_holds_the_folder_of_a_killed_run(tmp_path, tally):
    with (
        sole_user(tmp_path / ".records-0-of-2.lock", doing="a worker"),
        pytest.raises(ConfigurationError, match="a worker of an earlier amc bench"),
    ):
        run_job(tally, tmp_path, resume=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"version": 1}', '{"version": 1, "settings": 3, "methods": {}}'])
def test_damaged_settings_are_named(tmp_path, tally, text):
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"settings\.json .*use another folder"):
        run_job(tally, tmp_path, resume=True)
