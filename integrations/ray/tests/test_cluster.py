"""A Ray cluster of two real nodes, each a raylet with processes of its own; one is killed while it works."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import pytest
from amc_agents_ray.cluster import RayCluster, RaySettings
from amc_agents_ray.work import run_on_ray
from ray_jobs import HangingJob, shipped_files

from amc_agents.bench.methods import Tuned, amc, best_of_n, react
from amc_agents.bench.plan import ComparisonPlan, run_plan
from amc_agents.bench.report import summarise
from amc_agents.bench.report_tables import markdown
from amc_agents.cli import main
from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import ConfigurationError, StorageError
from amc_agents.training.dataset import read_records
from amc_agents.training.score_file import scored_values
from tests.bench.tally import reproducible

pytest.importorskip("ray")
from ray.cluster_utils import Cluster

pytestmark = [
    pytest.mark.service,
    pytest.mark.enable_socket,
    pytest.mark.filterwarnings("default"),  # Ray's own
]
HERE = Path(__file__).parent
PATHS = ":".join(map(str, (HERE, HERE.parent, HERE.parents[2])))
PLAN = ComparisonPlan(
    methods=(react(Tuned()), best_of_n(Tuned()), amc(Tuned(steps=(1,)))),
    n_tasks=4,
    band=(2, 3),
    n_particles=2,
    plain=True,
    critic="uniform",  # The last digits of the shipped value model depend on what shares its batches.
)


@pytest.fixture
def cluster(monkeypatch):
    """A cluster with a head; its nodes can import the tests."""
    monkeypatch.setenv("PYTHONPATH", PATHS)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def table(records):
    return markdown(summarise(reproducible(records), PLAN.methods, {}))


def test_a_node_is_killed_and_the_table_is_that_of_one_process(cluster, tmp_path, monkeypatch):
    alone = run_plan(PLAN, tmp_path / "alone")
    doomed = cluster.add_node(num_cpus=1)
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "doomed").write_text(doomed.node_id)
    monkeypatch.chdir(shared)
    killer = threading.Thread(target=kill_when_it_works, args=(cluster, doomed, shared))
    killer.start()
    remote = run_on_ray(HangingJob(PLAN, shared), tmp_path / "ray", f"ray:{cluster.address}")
    killer.join()
    assert reproducible(remote) == reproducible(alone)
    assert table(remote) == table(alone)
    lost = (shared / f"played-{doomed.node_id}").read_text().splitlines()
    survivor = (shared / f"played-{cluster.head_node.node_id}").read_text().splitlines()
    assert len(survivor) == PLAN.n_runs  # the call that the dead node had begun was executed again, whole
    assert 0 < len(lost) <= len(PLAN.methods)


def kill_when_it_works(cluster, node, shared):
    while not (shared / "hanging").exists():
        time.sleep(0.1)
    cluster.remove_node(node, allow_graceful=False)


def test_the_working_directory_is_shipped_with_models_that_git_ignores(cluster, tmp_path, monkeypatch):
    for name in ("my_agent.py", "value/model.safetensors", "runs/out/records.jsonl", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("content")
    (tmp_path / ".gitignore").write_text("value/\n")
    monkeypatch.chdir(tmp_path)
    with RayCluster(RaySettings(cluster.address), leave_out=["/runs/out"]) as connected:
        assert connected.n_cpus == 1
        folder, files = run_in_background(connected.call(shipped_files), n_workers=1)
    assert folder != str(tmp_path)
    assert files == [".gitignore", "my_agent.py", "value/model.safetensors"]


def fails():
    raise StorageError("/a/file", "the disk is full")


def test_an_error_of_a_call_keeps_its_class(cluster, tmp_path):
    settings = RaySettings(cluster.address, working_dir=None)
    with RayCluster(settings) as connected, pytest.raises(StorageError, match="the disk is full"):
        run_in_background(connected.call(fails), n_workers=1)


@pytest.mark.parametrize(("address", "message"), [("auto", "start a cluster"), ("127.0.0.1:1", "start a cluster")])
def test_no_cluster_is_an_error_that_says_what_to_do(address, message, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(ConfigurationError, match=message), RayCluster(RaySettings(address, working_dir=None)):
        pass


def test_collect_and_score_on_a_cluster(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    collect = ["collect", "--tasks", "3", "--trajectories", "2", "--band", "2", "3"]
    ray = ["--executor", f"ray:{cluster.address}"]
    amc_command(monkeypatch, *collect, "--out", "alone")
    amc_command(monkeypatch, *collect, "--out", "remote", *ray)
    assert actions("remote") == actions("alone")
    score = ["score", "--data", "remote", "--critic", "embedded:crafting"]
    amc_command(monkeypatch, *score, "--out", "alone.parquet")
    amc_command(monkeypatch, *score, "--out", "remote.parquet", *ray)
    alone, remote = (list(scored_values(f"{name}.parquet")) for name in ("alone", "remote"))
    assert [values.tolist() for values in alone] == [values.tolist() for values in remote]


def test_tuning_on_a_cluster(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tune = ["tune", "--tasks", "2", "--band", "2", "3", "--particles", "2", "--methods", "react"]
    small = ["--temperatures", "0.5,1"]
    amc_command(monkeypatch, *tune, *small, "--out", "alone", "--workers", "1")
    amc_command(monkeypatch, *tune, *small, "--out", "remote", "--executor", f"ray:{cluster.address}")
    alone, remote = (json.loads(Path(name, "tuning.json").read_text()) for name in ("alone", "remote"))
    assert remote["cells"] == alone["cells"]


def amc_command(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["amc", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code


def actions(folder):
    return [[step.action for step in record.trajectory.steps] for record in read_records(folder)]
