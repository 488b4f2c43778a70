"""The driver of a Ray cluster, with a cluster that is this process."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

import pytest
from amc_agents_ray import work
from amc_agents_ray.cluster import LostCall, RaySettings, below_working_directory, ray_settings
from amc_agents_ray.work import run_on_ray

from amc_agents.bench.engine import run_job
from amc_agents.bench.executors import execute_job, run_shared
from amc_agents.bench.plan import run_plan
from amc_agents.bench.run_files import failed_runs
from amc_agents.errors import AmcError, ConfigurationError
from tests.bench.tally import reproducible, two_methods


class HereCluster:
    """Executes each call in a thread, and loses calls as it is told."""

    lose = staticmethod(lambda items: False)

    def __init__(self, settings, leave_out=()):
        self.settings, self.leave_out = settings, leave_out

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    async def call(self, function, job, items, *arguments):
        if type(self).lose(items):
            raise LostCall("the power is out")
        return await asyncio.to_thread(function, job, items, *arguments)


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(work, "RayCluster", HereCluster)
    monkeypatch.setattr(HereCluster, "lose", staticmethod(lambda items: False))
    return HereCluster


def test_a_shared_folder_and_a_cluster_have_the_table_of_one_process(tmp_path, here):
    plan = two_methods()
    alone, counted = reproducible(run_plan(plan, tmp_path / "alone")), []
    assert reproducible(run_shared(plan.job(), tmp_path / "shared")) == alone
    assert reproducible(run_on_ray(plan.job(), tmp_path / "ray", "ray", progress=counted.append)) == alone
    assert counted == [0, 2, 4]


def test_only_missing_items_are_executed(tmp_path, here, tally):
    run_job(replace(tally, n=2), tmp_path / "out")
    with pytest.raises(ConfigurationError, match="--resume"):
        run_on_ray(tally, tmp_path / "out", "ray")
    run_on_ray(tally, tmp_path / "out", "ray", resume=True)
    assert sorted(tally.executed()) == list("012345")


def test_failures_come_back_with_their_causes(tmp_path, here, tally):
    tally = replace(tally, failing=("2",))
    done = run_on_ray(tally, tmp_path / "out", "ray")
    assert [result.task for result in done] == list("01345")
    failures = failed_runs(tmp_path / "out", tally.items(), [result.key for result in done])
    assert [failure.error for failure in failures] == ["ValueError: task 2 is broken"]


def test_a_cluster_on_which_everything_fails_is_given_up(tmp_path, here, tally):
    tally = replace(tally, n=20, failing=tuple(map(str, range(20))))
    with pytest.raises(AmcError, match="first 8 runs all failed"):
        run_on_ray(tally, tmp_path / "out", "ray")


def test_an_item_that_kills_its_process_is_the_only_failure(tmp_path, here, monkeypatch):
    plan = two_methods()
    killer = plan.comparison().items()[1]
    monkeypatch.setattr(here, "lose", staticmethod(lambda items: killer in items))
    done = run_on_ray(plan.job(), tmp_path, "ray")
    assert len(done) == 3
    failures = failed_runs(tmp_path, plan.comparison().items(), [result.key for result in done])
    assert [(failure.key, failure.error) for failure in failures] == [(killer.key, "LostCall: the power is out")]


def test_other_versions_are_refused(tmp_path, here, tally, monkeypatch):
    monkeypatch.setattr(work, "software", iter([{"numpy": "1"}, {"numpy": "2"}] * 9).__next__)
    with pytest.raises(ConfigurationError, match="numpy 2 instead of 1"):
        run_on_ray(replace(tally, n=1), tmp_path / "out", "ray")


def test_the_executor_by_name(tmp_path, here, tally):
    assert ray_settings("ray") == RaySettings()
    assert ray_settings("ray:node:6379?num_cpus=0.5&num_gpus=1&tpu=2&working_dir=none") == RaySettings(
        "node:6379", 0.5, 1.0, {"tpu": 2.0}, None
    )
    for executor in ("processes", "shared", "ray"):
        assert len(execute_job(tally, tmp_path / executor, executor=executor)) == 6


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        ("ray?num_cpus=many", "num_cpus='many' is not an amount"),
        ("ray?num_gpus=-1", "num_gpus='-1' is not an amount"),
    ],
)
def test_wrong_amounts_are_refused(tmp_path, tally, executor, message):
    with pytest.raises(ConfigurationError, match=message):
        execute_job(tally, tmp_path, executor=executor)


def test_results_are_not_shipped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert below_working_directory("runs/out") == "/runs/out"
    assert below_working_directory(os.sep) == os.sep
