"""Collecting and scoring on a cluster, with a cluster that is a thread of this process."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from functools import partial

import pytest
from amc_agents_ray import work
from amc_agents_ray.work import Remote

from amc_agents.cli import main
from amc_agents.training.dataset import read_records
from amc_agents.training.score_file import scored_values
from amc_agents.training.scoring import score
from tests.bench.own_agents import write_agent, write_tasks


class Here:
    """Executes each call in a thread; counts calls."""

    n_cpus = 1

    def __init__(self):
        self.calls = []

    async def call(self, function, *arguments):
        self.calls.append(function.__name__)
        return await asyncio.to_thread(function, *arguments)


@pytest.fixture
def cluster(monkeypatch):
    here = Here()

    @contextmanager
    def connected(settings, leave_out=()):
        yield here

    monkeypatch.setattr(work, "RayCluster", connected)
    return here


def amc(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["amc", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def contents(folder):
    """The trajectories of a dataset without the ids of messages, which are random."""
    return [
        (record.trajectory.task.id, record.group, [(step.action, step.reward) for step in record.trajectory.steps])
        for record in read_records(folder)
    ]


@pytest.mark.thorough
def test_a_world_is_collected_and_scored_as_in_this_process(tmp_path, monkeypatch, cluster):
    collect = ["collect", "--tasks", 3, "--trajectories", 2, "--band", 2, 3]
    amc(monkeypatch, *collect, "--out", tmp_path / "alone")
    amc(monkeypatch, *collect, "--out", tmp_path / "ray", "--executor", "ray")
    assert contents(tmp_path / "ray") == contents(tmp_path / "alone")
    assert cluster.calls == ["_play_there"] * 3
    cluster.calls.clear()
    spec, data = "embedded:crafting", tmp_path / "ray"
    score(spec, data, tmp_path / "alone.parquet", per_part=2)
    parts = partial(Remote(cluster).values, spec)
    score(spec, data, tmp_path / "ray.parquet", per_part=2, evaluate=parts)
    alone, remote = (list(scored_values(tmp_path / f"{name}.parquet")) for name in ("alone", "ray"))
    assert [values.tolist() for values in alone] == [values.tolist() for values in remote]
    assert cluster.calls == ["_score_there"] * 3


def test_an_own_agent_is_collected_and_its_losses_counted(tmp_path, monkeypatch, cluster):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = write_agent(tmp_path)
    write_tasks(tmp_path, 3, split="train")
    amc(
        monkeypatch, "collect", "--agent", name, "--tasks", "tasks.jsonl", "--trajectories", 2, "--out", "data",
        "--executor", "ray:node:1",
    )  # fmt: skip
    assert len(read_records("data")) == 6
    assert cluster.calls == ["_play_there"] * 3
