from __future__ import annotations

import pytest

from amc_agents.bench.own.rollouts import OwnRollouts
from amc_agents.bench.records import Cost, RunResult, Scores
from amc_agents.bench.results_folder import WorkItem, worker_file
from amc_agents.bench.run_files import HOPELESS, FailedRun, Failures, causes_of, failed_runs, stops
from amc_agents.bench.tuned import without_failed_tasks
from amc_agents.errors import AmcError, ConfigurationError, CriticError, PromptTooLong, QuorumLost
from amc_agents.types import Task


def record(method, task):
    return RunResult(method, task, 0, Scores(1, 1, None, 1, 1, 1, 1, 1, 1, 1), Cost(1, 2, 3, 0, 0, 0, 0, 0, 0.5))


def test_settings_are_scored_on_the_tasks_on_which_no_run_failed():
    records = [record("T=1", "a"), record("T=2", "a"), record("T=1", "b")]
    kept, note = without_failed_tasks(records, [FailedRun("T=2", "b", 0, "E: x")])
    assert [(run.method, run.task) for run in kept] == [("T=1", "a"), ("T=2", "a")]
    assert note is not None
    assert "1 tasks" in note
    assert "1 x E: x" in note
    assert without_failed_tasks(records, []) == (records, None)
    with pytest.raises(ConfigurationError, match="every one of the 1 tasks: 1 x E: x"):
        without_failed_tasks(records[2:], [FailedRun("T=2", "b", 0, "E: x")])


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (ConfigurationError("x"), True),
        (CriticError("x"), True),
        (PromptTooLong("x"), False),  # of this trajectory only
        (QuorumLost(0, 1, [ValueError("x")]), False),
        (ValueError("x"), False),
    ],
)
def test_only_faults_of_the_set_up_end_a_comparison(error, ends):
    assert stops(error) is ends


def test_a_later_success_hides_a_failure(tmp_path):
    items = [WorkItem("react", task, 0) for task in "abc"]
    with worker_file(tmp_path, "failures") as file:
        failures = Failures(file)
        failures.succeeded()
        for item in (*items[:2], items[0]):
            failures.add(item, ValueError(f"no {item.task}"))
    newest = failed_runs(tmp_path, items, [("react", "b", 0)])
    assert [(run.task, run.error) for run in newest] == [("a", "ValueError: no a")]
    assert causes_of(["x", "y", "x", "z", "v"], most=2) == ["2 x x", "1 x y", "and 2 other errors"]


def test_a_comparison_ends_only_if_nothing_has_succeeded(tmp_path):
    item = WorkItem("react", "a", 0)
    with worker_file(tmp_path, "failures") as file:
        failures = Failures(file)
        for _ in range(HOPELESS - 1):
            failures.add(item, ValueError("x"))
        with pytest.raises(AmcError, match=f"first {HOPELESS} runs all failed, the last with ValueError: x"):
            failures.add(item, ValueError("x"))
    with worker_file(tmp_path, "failures", "1") as file:
        failures = Failures(file)
        failures.succeeded()
        for _ in range(HOPELESS + 1):
            failures.add(item, ValueError("x"))


def test_a_collection_ends_only_if_nothing_has_succeeded():
    rollouts = OwnRollouts(own=None, n_trajectories=2, temperature=1.0, horizon=3)
    for _ in range(HOPELESS - 1):
        rollouts.failed(Task("a", "Do."), ValueError("x"))
    with pytest.raises(AmcError, match="tasks all failed, the last with ValueError: x"):
        rollouts.failed(Task("a", "Do."), ValueError("x"))
    with pytest.raises(ConfigurationError):
        rollouts.failed(Task("a", "Do."), ConfigurationError("x"))
    rollouts.lost = 3
    assert rollouts.notes()[0].startswith("3 trajectories failed")
