import asyncio
import json
import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest
from langchain_core.language_models import FakeListChatModel

from amc_agents.envs.crafting.tasks import generate_tasks
from amc_agents.envs.crafting.world import CraftingWorld
from amc_agents.errors import CheckpointError, ConfigurationError, MissingExtra, StorageError
from amc_agents.training.collecting import collect, collect_from
from amc_agents.training.dataset import (
    LoggedTrajectory,
    best_trajectories,
    data_hash,
    dataset_hash,
    iter_records,
    read_records,
    read_trajectories,
    rewrite_shard,
    shard_rows,
    shards,
    unknown_outcomes,
    write_shard,
)
from amc_agents.types import Step, Task, Trajectory

TASKS = [Task(f"t/{i}", f"do {i}") for i in range(7)]


def finished(task, *rewards):
    return Trajectory(task, tuple(Step("act", "seen", "why", r, ("m1", "m2")) for r in rewards), done=True)


def test_records_survive_a_round_trip(tmp_path):
    records = [
        LoggedTrajectory(finished(TASKS[1], 0.5, 1.0), 1, "mine", 2**40, '{"a": 1}'),
        LoggedTrajectory(finished(TASKS[0]), 0),
    ]
    write_shard(tmp_path, records[:1])
    write_shard(tmp_path, records[1:])
    assert len(shards(tmp_path)) == 2
    assert read_records(tmp_path) == records[::-1]  # ordered by task
    assert read_trajectories(tmp_path)[1].return_ == 1.5


def test_an_unknown_outcome_is_null_on_disk_and_never_0(tmp_path):
    waiting, failed = finished(TASKS[0], 0.0, math.nan), finished(TASKS[1], 0.0, 0.0)
    write_shard(tmp_path, [LoggedTrajectory(waiting, 0), LoggedTrajectory(failed, 0)])
    assert [row["return"] for _, row in shard_rows(shards(tmp_path)[0], ["return"])] == [None, 0.0]
    unknown, known = read_records(tmp_path)
    assert not unknown.outcome_known
    assert math.isnan(unknown.trajectory.return_)
    assert known.outcome_known
    assert unknown_outcomes(tmp_path) == 1
    for selection in ({"known_outcomes": True}, {"best_of": 1}):
        assert [record.trajectory for record in iter_records(tmp_path, **selection)] == [failed]


def test_a_shard_is_rewritten_in_place(tmp_path):
    write_shard(tmp_path, [LoggedTrajectory(finished(task, 0.0), 0) for task in TASKS[:2]])
    before = dataset_hash(tmp_path)
    rewrite_shard(shards(tmp_path)[0], [None, lambda record: replace(record, policy="renamed")])
    assert [record.policy for record in read_records(tmp_path)] == ["", "renamed"]
    assert len(shards(tmp_path)) == 1
    assert dataset_hash(tmp_path) != before


def test_a_shard_is_written_atomically(tmp_path, monkeypatch):
    def broken(unfinished, target):
        raise OSError("disk full")

    monkeypatch.setattr("amc_agents.files.os.replace", broken)
    with pytest.raises(StorageError, match="disk full"):
        write_shard(tmp_path, [LoggedTrajectory(finished(TASKS[0], 1.0), 0)])
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_missing_data_and_missing_pyarrow_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no trajectories"):
        read_records(tmp_path)
    (tmp_path / "trajectories-00000.parquet").write_text("not parquet")
    with pytest.raises(CheckpointError, match="is not a shard"):
        read_records(tmp_path)


def test_the_data_hash_covers_rewards_but_not_message_ids():
    one = [finished(TASKS[0], 0.0, 1.0)]
    assert data_hash(one) != data_hash([finished(TASKS[0], 1.0, 0.0)])
    steps = tuple(replace(step, message_ids=()) for step in one[0].steps)
    assert data_hash(one) == data_hash([replace(one[0], steps=steps)])


class Player:
    """Two finished trajectories and an unfinished one per task; fails at a task of choice."""

    def __init__(self, fails_at=None):
        self.played, self.seeds, self.fails_at, self.busy, self.most = [], {}, fails_at, 0, 0

    async def __call__(self, task, seed):
        self.busy += 1
        self.most = max(self.most, self.busy)
        await asyncio.sleep(0)
        self.busy -= 1
        if task.id == self.fails_at:
            raise RuntimeError("the world burnt down")
        self.played.append(task.id)
        self.seeds[task.id] = seed
        return [finished(task, 1.0), finished(task, 0.0), finished(task, 0.0).prefix(0)]


async def test_an_interrupted_collection_resumes(tmp_path):
    first = Player(fails_at="t/5")
    with pytest.raises(RuntimeError, match="burnt down"):
        await collect_from(first, TASKS, tmp_path, shard_tasks=2, n_concurrent=1)
    kept = {one.task.id for one in read_trajectories(tmp_path)}
    assert kept == set(first.played) >= {"t/0", "t/1", "t/2", "t/3", "t/4"}
    second = Player()
    assert await collect_from(second, TASKS, tmp_path, shard_tasks=2) == 2 * (7 - len(kept))
    assert set(second.played) == {task.id for task in TASKS} - kept
    assert await collect_from(Player(), TASKS, tmp_path) == 0
    records = read_records(tmp_path)
    assert [(one.trajectory.task.id, one.group) for one in records] == [(f"t/{i}", g) for i in range(7) for g in (0, 1)]


async def test_seeds_depend_on_the_task_and_not_on_the_order(tmp_path):
    one, other, third = Player(), Player(), Player()
    await collect_from(one, TASKS, tmp_path / "a")
    await collect_from(other, TASKS[::-1], tmp_path / "b", n_concurrent=1)
    await collect_from(third, TASKS, tmp_path / "c", seed=1)
    assert one.seeds == other.seeds
    assert len(set(one.seeds.values())) == 7
    assert set(third.seeds.values()).isdisjoint(one.seeds.values())
    assert one.most > 1
    assert other.most == 1


async def test_other_settings_than_the_datasets_are_refused(tmp_path):
    await collect_from(Player(), TASKS[:2], tmp_path, settings={"temperature": 1.0})
    with pytest.raises(CheckpointError, match=r'"temperature": 1.0.*"temperature": 0.5'):
        await collect_from(Player(), TASKS, tmp_path, settings={"temperature": 0.5})


async def test_nothing_is_played_without_pyarrow(tmp_path, monkeypatch):
    async def rollouts(task, seed):
        raise AssertionError("played")

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match="pyarrow"):
        await collect_from(rollouts, [Task("a", "")], tmp_path)


async def test_tasks_with_equal_ids_are_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="2 tasks have 1 different ids"):
        await collect_from(Player(), [TASKS[0], TASKS[0]], tmp_path)


def test_an_agent_is_collected_through_amc(tmp_path):
    from amc_agents.runtime.text_agent import text_agent

    model = FakeListChatModel(responses=["Thought: look first\nAction: inventory", "Action: dance"])
    tasks, seen = list(generate_tasks(3)), []
    n = collect(
        text_agent(model), tasks, CraftingWorld, 4, tmp_path, horizon=3, policy="fake", settings={"temperature": 1.0},
        progress=seen.append,
    )  # fmt: skip
    assert n == 12
    assert [one.tasks for one in seen] == [1, 2, 3]
    records = read_records(tmp_path)
    assert [one.group for one in records] == [0, 1, 2, 3] * 3
    assert all(one.trajectory.done and len(one.trajectory.steps) == 3 for one in records)
    assert json.loads(records[0].settings) == {"horizon": 3, "n_trajectories": 4, "seed": 0, "temperature": 1.0}
    by_action = {step.action: step for one in records for step in one.trajectory.steps}
    assert by_action["inventory"].thought == "look first"
    assert by_action["inventory"].observation == "Inventory: You are not carrying anything."
    assert by_action["dance"].observation == "Could not execute dance"
    assert {one.trajectory.task.instruction for one in records} == {task.instruction for task in tasks}


def test_records_are_streamed_in_the_order_of_the_shards(tmp_path):
    records = [LoggedTrajectory(finished(task, 0.5), group) for task in TASKS for group in range(20)]
    for part in (records[100:], records[:100]):
        write_shard(tmp_path, part)
    stream = iter_records(tmp_path)
    assert next(stream) == records[100]
    assert [records[100], *stream] == records[100:] + records[:100]
    assert read_records(tmp_path) == sorted(records, key=lambda one: (one.trajectory.task.id, one.group))


def returns_of(records):
    return [(one.policy, one.trajectory.task.id, one.group, one.trajectory.return_) for one in records]


def test_the_best_of_the_first_few_of_each_task_and_policy(tmp_path):
    returns = {
        ("ours", "t/0"): [0.2, 0.7, 0.7, 1.0],  # the first of equals; the best of all comes too late
        ("ours", "t/1"): [0.1],
        ("surrogate", "t/0"): [0.0, 0.0, 0.5],
    }
    records = [
        LoggedTrajectory(finished(Task(task, "do"), value), group, policy)
        for (policy, task), values in returns.items()
        for group, value in enumerate(values)
    ]
    # Siblings need not lie together, nor in order.
    write_shard(tmp_path, records[::-2])
    write_shard(tmp_path, records[-2::-2])
    best = [("ours", "t/0", 1, 0.7), ("surrogate", "t/0", 2, 0.5), ("ours", "t/1", 0, 0.1)]
    assert sorted(returns_of(read_records(tmp_path, best_of=3))) == sorted(best)
    assert returns_of(read_records(tmp_path, best_of=3, policies=["surrogate"])) == [best[1]]
    assert returns_of(read_records(tmp_path, best_of=4, policies=["ours"]))[0] == ("ours", "t/0", 3, 1.0)
    assert len(read_records(tmp_path, policies=("surrogate",))) == 3
    assert sorted(returns_of(iter_records(tmp_path))) == sorted(returns_of(records))
    ours = read_trajectories(tmp_path, policies=["ours"])
    assert best_trajectories(ours, 3) == read_trajectories(tmp_path, best_of=3, policies=["ours"])


def test_a_selection_of_nothing_is_refused(tmp_path):
    write_shard(tmp_path, [LoggedTrajectory(finished(TASKS[0], 1.0), 0, "ours")])
    with pytest.raises(ConfigurationError, match=r"no trajectory of policy others in .*\['ours'\]"):
        read_records(tmp_path, policies=["others", "ours"])
    with pytest.raises(ConfigurationError, match="best_of is 0"):
        iter_records(tmp_path, best_of=0)
    with pytest.raises(CheckpointError, match="no trajectories"):
        iter_records(tmp_path / "none")


def test_a_shard_without_a_column_is_named(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"task_id": ["t/0"]}), tmp_path / "trajectories-00000.parquet")
    with pytest.raises(CheckpointError, match="it lacks group, policy, return"):
        read_records(tmp_path)


def test_a_datasets_fingerprint_covers_its_bytes(tmp_path):
    for name, value in (("a", 1.0), ("b", 1.0), ("c", 0.5)):
        write_shard(tmp_path / name, [LoggedTrajectory(finished(TASKS[0], value), 0)])
    one, same, other = (dataset_hash(tmp_path / name) for name in "abc")
    assert one == same != other
    write_shard(tmp_path / "a", [LoggedTrajectory(finished(TASKS[1], 1.0), 0)])
    assert dataset_hash(tmp_path / "a") != one


ADD = """
import sys
from amc_agents.training.dataset import LoggedTrajectory, write_shard
from amc_agents.types import Step, Task, Trajectory
name, folder = sys.argv[1:]
for number in range(25):
    write_shard(folder, [LoggedTrajectory(Trajectory(Task(f"{name}-{number}", "x"), (Step("a", "b"),), True), 0)])
"""


@pytest.mark.thorough
def test_two_processes_add_to_the_same_dataset_without_loss(tmp_path):
    data = tmp_path / "data"
    others = [subprocess.Popen([sys.executable, "-c", ADD, name, str(data)]) for name in "AB"]
    assert [other.wait() for other in others] == [0, 0]
    assert len(read_records(data)) == len({record.trajectory.task.id for record in read_records(data)}) == 50
    assert {path.name for path in data.iterdir()} == {".lock", *(path.name for path in shards(data))}


async def test_a_task_collected_by_two_processes_is_stored_once(tmp_path):
    async def rollouts(task, seed):
        if task is TASKS[1]:  # the other process finishes the same task at this moment
            write_shard(tmp_path, [LoggedTrajectory(finished(task, 1.0), 0, settings="{}")])
        return [finished(task, 1.0)]

    await collect_from(rollouts, TASKS[:3], tmp_path)
    assert [record.trajectory.task.id for record in read_records(tmp_path)] == ["t/0", "t/1", "t/2"]


def test_a_shard_with_a_changed_byte_is_refused(tmp_path):
    shard = write_shard(
        tmp_path, [LoggedTrajectory(Trajectory(Task("t", "go"), (Step("a", "b"),), True), n) for n in range(3)]
    )
    content, rng = shard.read_bytes(), random.Random(0)
    name = content.rfind(b"amc_sha256")
    for place in (0, len(content) - 1, name + 13, *rng.sample(range(len(content)), 100)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        shard.write_bytes(damaged)
        if not name <= place < name + 12:  # without its name, a shard is taken for one of an older version
            with pytest.raises(CheckpointError):
                read_records(tmp_path)
    shard.write_bytes(content)
    assert len(read_records(tmp_path)) == 3
