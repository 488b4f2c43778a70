"""Executors by name: the library's own, and those that other packages offer."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest

from amc_agents.bench import executors
from amc_agents.bench.engine import run_job
from amc_agents.bench.executors import cluster_of, execute_job
from amc_agents.errors import ConfigurationError


def run(job, out, executor, *, resume, n_concurrent, progress):
    """Another package's executor."""
    (out.parent / "named").write_text(executor)
    return run_job(job, out, resume=resume, n_concurrent=n_concurrent, progress=progress)


@pytest.fixture
def vendor(monkeypatch):
    monkeypatch.setattr(executors, "entry_points", lambda group: [EntryPoint("vendor", __name__, group)])
    monkeypatch.setattr(EntryPoint, "load", lambda point: __import__("sys").modules[point.value])


def test_executors_by_name(tmp_path, tally, vendor):
    for executor in ("processes", "shared", "vendor:node?n=2"):
        assert len(execute_job(tally, tmp_path / executor[:6], executor=executor)) == 6
    assert (tmp_path / "named").read_text() == "vendor:node?n=2"


@pytest.mark.parametrize(
    ("executor", "message"),
    [
        ("slurm", "no executor 'slurm': expected one of processes, shared, vendor$"),
        ("ray:node", "integrations/ray, which is not installed"),
        ("shared?lease=3", "no executor"),
    ],
)
def test_unknown_executors_are_refused(tmp_path, tally, vendor, executor, message):
    with pytest.raises(ConfigurationError, match=message):
        execute_job(tally, tmp_path, executor=executor)


def test_collecting_needs_no_cluster_and_shares_no_folder(tmp_path):
    with cluster_of("processes", tmp_path) as connected:
        assert connected is None
    with pytest.raises(ConfigurationError, match="shared is for amc bench"), cluster_of("shared", tmp_path):
        pass
