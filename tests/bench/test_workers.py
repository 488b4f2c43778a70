"""What `run_plan` says of its progress, and what that costs."""

from __future__ import annotations

from dataclasses import replace

from amc_agents.bench.methods import Tuned, best_of_n, react
from amc_agents.bench.plan import Plan
from amc_agents.bench.records import read_records
from amc_agents.bench.workers import run_plan

PLAN = Plan(methods=(react(Tuned()), best_of_n(Tuned())), n_tasks=3, band=(2, 3), n_particles=2, plain=True)


def folder_reads(monkeypatch):
    """Gets an entry each time that the whole folder is read."""
    reads = []

    def counting(out):
        reads.append(out)
        return read_records(out)

    monkeypatch.setattr("amc_agents.bench.runner.read_records", counting)
    return reads


def test_one_process_counts_its_runs_and_does_not_read_the_folder_for_each(tmp_path, monkeypatch):
    reads, told = folder_reads(monkeypatch), []
    run_plan(PLAN, tmp_path, n_concurrent=1, progress=told.append)
    assert told == list(range(7))
    assert len(reads) < 6


def test_progress_goes_on_from_what_is_kept(tmp_path):
    told = []
    run_plan(replace(PLAN, n_tasks=2), tmp_path, n_concurrent=1)
    run_plan(PLAN, tmp_path, resume=True, n_concurrent=1, progress=told.append)
    assert told == [4, 5, 6]


def test_several_processes_say_what_they_have_together(tmp_path):
    told = []
    records = run_plan(PLAN, tmp_path, n_workers=2, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == len(records) == 6


def test_nobody_needs_to_be_told(tmp_path):
    assert len(run_plan(PLAN, tmp_path)) == 6
