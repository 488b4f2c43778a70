"""Every trajectory of a comparison, as a dataset; hashes of prompts; the versions that made a folder."""

from __future__ import annotations

import json
import sys

import pytest
from langchain_core.messages import HumanMessage

from amc_agents.bench import results_folder
from amc_agents.bench.engine import execute_work, results_of
from amc_agents.bench.records import RunResult, read_run_results
from amc_agents.bench.results_folder import read_software, software
from amc_agents.bench.run_files import DATASET, write_dataset
from amc_agents.bench.runner import ComparisonWork, hash_of_input
from amc_agents.cli import main
from amc_agents.training.dataset import read_records


async def played(comparison, out, **settings):
    work = ComparisonWork(comparison, keep_trajectories=True, **settings)
    await execute_work(work, out, resume=True, n_concurrent=2)
    return results_of(work, out)


async def test_every_trajectory_of_every_run_is_in_the_dataset(make_comparison, tmp_path, six_methods):
    comparison = make_comparison(n_tasks=1, methods=six_methods[2:4], seeds=(0, 1))
    results = await played(comparison, tmp_path)
    write_dataset(tmp_path, [item.key for item in comparison.items()])
    records = read_records(tmp_path / DATASET)
    expected = {}
    for result in results:
        expected.setdefault((result.task, result.method), []).extend(result.particles.returns)
    stored = {}
    for record in records:
        stored.setdefault((record.trajectory.task.id, record.policy), []).append(record.trajectory.return_)
    assert stored == expected
    assert {json.loads(record.settings)["prompt"] for record in records} == {result.prompt for result in results}
    assert [record.group for record in records if record.policy == "smc"] == [*range(8)]


async def test_the_dataset_does_not_depend_on_the_order_of_the_runs(make_comparison, tmp_path, six_methods):
    comparison = make_comparison(n_tasks=2, methods=six_methods[:2])
    keys = [item.key for item in comparison.items()]
    await played(comparison, tmp_path)
    first = write_dataset(tmp_path, keys).read_bytes()
    lines = (tmp_path / "trajectories.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "trajectories.jsonl").write_text("".join(reversed(lines)))
    assert write_dataset(tmp_path, keys).read_bytes() == first


async def test_without_trajectories_there_is_no_dataset(make_comparison, tmp_path):
    comparison = make_comparison(n_tasks=1)
    await execute_work(ComparisonWork(comparison), tmp_path, resume=False, n_concurrent=2)
    assert write_dataset(tmp_path, [item.key for item in comparison.items()]) is None


def test_equal_prompts_have_equal_hashes():
    assert hash_of_input({"messages": [("user", "a")]}) == hash_of_input({"messages": [["user", "a"]]})
    first, second = HumanMessage("a", id="1"), HumanMessage("a", id="2")
    assert hash_of_input({"messages": [first]}) == hash_of_input({"messages": [second]})
    assert hash_of_input({"messages": [first]}) != hash_of_input({"messages": [HumanMessage("b")]})


@pytest.mark.thorough
async def test_a_result_has_the_hash_of_its_prompt(make_comparison, tmp_path):
    comparison = make_comparison(n_tasks=2)
    results = await played(comparison, tmp_path)
    assert len({result.prompt for result in results}) == 2
    assert read_run_results(tmp_path) != []
    older = results[0].to_json()
    del older["prompt"]
    assert RunResult.from_json(older).prompt is None


async def test_the_versions_that_made_a_folder_are_listed(make_comparison, tmp_path, monkeypatch):
    comparison = make_comparison(n_tasks=1)
    for _ in range(2):
        await played(comparison, tmp_path)
    assert read_software(tmp_path) == [software()]
    assert {"python", "amc-agents", "numpy"} <= software().keys()
    monkeypatch.setattr(results_folder, "software", lambda: {"numpy": "9"})
    await played(comparison, tmp_path)
    assert read_software(tmp_path) == [software(), {"numpy": "9"}]


@pytest.mark.thorough
def test_bench_writes_a_dataset(tmp_path, monkeypatch):
    arguments = ["bench", "--tasks", "1", "--band", "2", "3", "--particles", "2", "--methods", "react,best-of-n"]
    monkeypatch.setattr(sys, "argv", ["amc", *arguments, "--executor", "shared", "--out", str(tmp_path)])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--workers", "1", "--keep-trajectories"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert len(read_records(tmp_path / DATASET)) == 3
