import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.render import DIALOGUE, PLAIN, Encoder
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.training.data_checks import held_out_tasks, split_by_task
from amc_agents.training.dataset import LoggedTrajectory, read_trajectories, write_shard
from amc_agents.training.settings import Objective
from amc_agents.training.value.row_building import build_rows, tokenizer_hash
from amc_agents.training.value.rows import TargetRow
from amc_agents.training.value.targets import returns_to_come
from amc_agents.types import Step, Task, Trajectory


def tokenize(text):
    return list(text.encode())


def encoder(prompt_format=PLAIN, max_tokens=160, prefix_ids=(300_000,)):
    return Encoder(prompt_format, tokenize, max_tokens, prefix_ids)


def played(number, group):
    """Short texts, so that siblings often share states, of lengths that need up to several windows."""
    rng = np.random.default_rng([number, group])
    steps = tuple(
        Step(str(rng.choice(["left", "right"])), "seen " * int(rng.choice([1, 4])), reward=float(rng.random() < 0.3))
        for _ in range(rng.integers(1, 7))
    )
    return Trajectory(Task(f"t/{number}", f"walk {number}"), steps, done=True)


@pytest.fixture
def data(tmp_path):
    """Nine tasks in random order, in five shards."""
    records = [LoggedTrajectory(played(number, group), group, "mine") for number in range(9) for group in range(5)]
    order = np.random.default_rng(0).permutation(len(records))
    for part in np.array_split(order, 5):
        write_shard(tmp_path / "data", [records[index] for index in part])
    return tmp_path / "data"


def state(trajectory, t):
    """The identity of a state: the task and the steps so far."""
    steps = tuple((step.thought, step.action, step.observation) for step in trajectory.steps[:t])
    return trajectory.task.id, trajectory.task.instruction, steps


def target_rows(trajectories, encoder, objective=None, *, success=1.0):
    """The rows by their definition, in memory, without code of the rows on disk."""
    objective = objective or Objective()
    whole = objective.target == "return"
    targets = [np.full(len(t.steps) + 1, t.return_) if whole else returns_to_come(t) for t in trajectories]
    if objective.soft:
        by_state = {}
        for trajectory, returns in zip(trajectories, targets, strict=True):
            for t, value in enumerate(returns):
                by_state.setdefault(state(trajectory, t), []).append(value)
        beta = objective.beta
        soft = {key: beta * np.log(np.mean(np.exp(np.array(values) / beta))) for key, values in by_state.items()}
        targets = [np.array([soft[state(one, t)] for t in range(len(one.steps) + 1)]) for one in trajectories]
    weights = [np.ones(len(one)) for one in targets]
    if objective.loss == "weighted":
        tilted = [np.exp(one / objective.beta) for one in targets]
        weights = [one / np.mean(np.concatenate(tilted)) for one in tilted]
    rows = []
    for trajectory, target, weight in zip(trajectories, targets, weights, strict=True):
        for row in encoder.rows(trajectory):
            chosen = list(row.states)
            rows.append(
                TargetRow(
                    row.ids, row.marks, row.states, tuple(target[chosen].tolist()),
                    tuple(t == len(trajectory.steps) for t in chosen), trajectory.return_ >= success,
                    tuple(weight[chosen].tolist()),
                )
            )  # fmt: skip
    return rows


def shuffled_targets(rows, rng):
    """The control by its definition: a permutation of the targets for each state number, in rising order."""
    marks = [(number, index) for number, row in enumerate(rows) for index in range(len(row.states))]
    targets, weights = [list(row.targets) for row in rows], [list(row.weights) for row in rows]
    for t in sorted({t for row in rows for t in row.states}):
        places = [(number, index) for number, index in marks if rows[number].states[index] == t]
        for place, source in zip(places, rng.permutation(len(places)), strict=True):
            number, index = places[source]
            targets[place[0]][place[1]] = rows[number].targets[index]
            weights[place[0]][place[1]] = rows[number].weights[index]
    return [
        replace(row, targets=tuple(target), weights=tuple(weight))
        for row, target, weight in zip(rows, targets, weights, strict=True)
    ]


def assert_same(rows, expected):
    """Compare rows exactly, except targets and weights, whose sums are added in another order."""
    for row, other in zip(rows, expected, strict=True):
        assert replace(row, weights=(), targets=()) == replace(other, weights=(), targets=())
        np.testing.assert_allclose(row.targets, other.targets, rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(row.weights, other.weights, rtol=1e-14)


def split(rows, share, rng):
    held_out = held_out_tasks(rows.tasks, share, rng)
    return rows.of_tasks({*rows.tasks} - held_out), rows.of_tasks(held_out)


OBJECTIVES = [
    Objective(),
    Objective(target="return"),
    Objective(soft=True, beta=0.7),
    Objective(loss="weighted", beta=0.7, target="return"),
]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_rows_on_disk_equal_their_definition(data, tmp_path, objective):
    whole = build_rows(data, tmp_path / "cache", encoder(), objective, tokenizer="bytes", success=2.0)
    trajectories = read_trajectories(data)
    assert_same(whole, target_rows(trajectories, encoder(), objective, success=2.0))
    assert len(whole) > 45
    assert any(row.success for row in whole)
    assert not all(row.success for row in whole)
    assert whole.lengths.tolist() == [len(row.ids) for row in whole]
    assert whole.marks.tolist() == [len(row.marks) for row in whole]
    assert list(whole[3:7]) == list(whole)[3:7]
    if objective.soft:
        alone = target_rows(trajectories, encoder(), replace(objective, soft=False, beta=None), success=2.0)
        assert [row.targets for row in alone] != [row.targets for row in whole]


@pytest.mark.parametrize("at_once", [1, 40])
def test_continuations_are_grouped_a_few_tasks_at_a_time(data, tmp_path, monkeypatch, at_once):
    monkeypatch.setattr("amc_agents.training.value.row_building._STATES_AT_ONCE", at_once)
    objective = Objective(soft=True, beta=0.7)
    wide = encoder(max_tokens=None)  # one row a trajectory: each holds the start, which all siblings share
    rows = build_rows(data, tmp_path, wide, objective, tokenizer="bytes")
    assert_same(rows, target_rows(read_trajectories(data), wide, objective))
    assert all(len({row.targets[0] for row in rows[start : start + 5]}) == 1 for start in range(0, 45, 5))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_split_and_control_equal_their_definitions(data, tmp_path, objective):
    whole = build_rows(data, tmp_path / "cache", encoder(), objective, tokenizer="bytes")
    training, validation = split(whole, 0.3, np.random.default_rng(5))
    parts = split_by_task(read_trajectories(data), 0.3, np.random.default_rng(5))
    expected = [target_rows(part, encoder(), objective) for part in parts]
    assert_same(training, expected[0])
    assert_same(validation, expected[1])
    assert validation.tasks == sorted({one.task.id for one in parts[1]})
    control = training.with_shuffled_targets(np.random.default_rng(6))
    assert_same(control, shuffled_targets(expected[0], np.random.default_rng(6)))
    assert list(control) != list(training)
    with pytest.raises(ConfigurationError, match="9 tasks holds out 0"):
        split(whole, 0.01, np.random.default_rng(0))


def test_the_summary_counts_what_is_there(data, tmp_path):
    whole = build_rows(data, tmp_path / "cache", encoder(), tokenizer="bytes")
    trajectories = read_trajectories(data)
    assert whole.summary._asdict() == {
        "tasks": 9,
        "trajectories": 45,
        "rows": len(whole),
        "states": sum(len(one.steps) + 1 for one in trajectories),
        "tokens": sum(len(row.ids) for row in target_rows(trajectories, encoder())),
    }
    part = split(whole, 0.3, np.random.default_rng(0))[1]
    assert part.summary.tasks == 3
    assert part.summary.trajectories == 15
    assert whole.about["policies"] == ["mine"]
    assert len(whole.about["data_hash"]) == 64


def test_rows_are_reused_and_rebuilt_if_anything_differs(data, tmp_path):
    cache = tmp_path / "cache"

    def build(**changes):
        settings = {"encoder": encoder(), "objective": Objective(), "tokenizer": "bytes"} | changes
        return build_rows(data, cache, **settings).folder

    def refuse(text):
        raise AssertionError("tokenized again")

    first = build()
    assert build(encoder=Encoder(PLAIN, refuse, 160, (300_000,))) == first
    changes = [
        {"encoder": encoder(DIALOGUE)},
        {"encoder": encoder(max_tokens=170)},
        {"encoder": encoder(prefix_ids=())},
        {"objective": Objective(target="return")},
        {"tokenizer": "others"},
        {"success": 0.5},
        {"best_of": 2},
        {"policies": ["mine"]},
    ]
    assert len({first, *(build(**one) for one in changes)}) == 1 + len(changes)
    write_shard(data, [LoggedTrajectory(played(99, 0), 0, "mine")])
    assert build() != first


def test_selection_reaches_the_rows(data, tmp_path):
    best = build_rows(data, tmp_path / "cache", encoder(), tokenizer="bytes", best_of=3, policies=["mine"])
    assert list(best) == target_rows(read_trajectories(data, best_of=3, policies=["mine"]), encoder())
    assert best.summary.trajectories == 9
    with pytest.raises(ConfigurationError, match="best_of 3 with soft"):
        build_rows(data, tmp_path, encoder(), Objective(soft=True, beta=1.0), tokenizer="bytes", best_of=3)


def test_an_interrupted_build_leaves_nothing(data, tmp_path):
    cache, calls = tmp_path / "cache", []

    def breaks(text):
        calls.append(text)
        if len(calls) == 10:
            raise KeyboardInterrupt
        return tokenize(text)

    with pytest.raises(KeyboardInterrupt):
        build_rows(data, cache, Encoder(PLAIN, breaks, 160), tokenizer="bytes")
    assert list(cache.iterdir()) == []
    write_shard(data, [LoggedTrajectory(played(0, 9).prefix(1), 9)])
    with pytest.raises(ConfigurationError, match="'t/0' is not done"):
        build_rows(data, cache, encoder(), tokenizer="bytes")
    assert list(cache.iterdir()) == []


def test_two_builders_at_once_do_not_disturb_each_other(data, tmp_path):
    cache, others = tmp_path / "cache", []

    def overtaken(text):
        if not others:
            others.append(None)
            # Another process has another id, and so another folder to write to.
            pid, os.getpid = os.getpid, lambda: 0
            others[0] = build_rows(data, cache, encoder(), tokenizer="bytes")
            os.getpid = pid
        return tokenize(text)

    mine = build_rows(data, cache, Encoder(PLAIN, overtaken, 160, (300_000,)), tokenizer="bytes")
    assert mine.folder == others[0].folder
    assert list(mine) == list(others[0])
    assert len(list(cache.iterdir())) == 1


def test_damaged_rows_are_named(data, tmp_path):
    folder = build_rows(data, tmp_path / "cache", encoder(), tokenizer="bytes").folder

    def again():
        return build_rows(data, tmp_path / "cache", encoder(), tokenizer="bytes")

    ids = (folder / "ids.bin").read_bytes()
    (folder / "ids.bin").write_bytes(ids[:-4])
    with pytest.raises(CheckpointError, match=r"does not hold the training rows.*remove it"):
        again()
    (folder / "ids.bin").write_bytes(ids)
    about = json.loads((folder / "rows.json").read_text())
    (folder / "rows.json").write_text(json.dumps(about | {"version": 0}))
    with pytest.raises(CheckpointError, match="layout 0, expected 2"):
        again()
    (folder / "rows.json").unlink()
    with pytest.raises(CheckpointError, match=r"rows.json.*remove it"):
        again()


def test_pickled_rows_are_small_and_open_the_same_files(data, tmp_path):
    objective = Objective(loss="weighted", beta=0.7)
    rows = build_rows(data, tmp_path / "cache", encoder(), objective, tokenizer="bytes")
    training, _ = split(rows, 0.3, np.random.default_rng(0))
    control = training.with_shuffled_targets(np.random.default_rng(0))
    sent = pickle.dumps(training)
    assert len(sent) < 2000 + 8 * len(training)
    assert list(pickle.loads(sent)) == list(training)
    assert list(pickle.loads(pickle.dumps(control))) == list(control)


@pytest.mark.parametrize("best_of", [None, 2])
def test_trajectories_in_memory_keep_their_order(tmp_path, best_of):
    trajectories = [played(number, group) for number in (3, 11, 2) for group in range(3)]
    rows = build_rows(trajectories, tmp_path, encoder(), tokenizer="bytes", best_of=best_of)
    chosen = trajectories if best_of is None else [
        max(trajectories[start : start + 2], key=lambda one: one.return_) for start in (0, 3, 6)
    ]  # fmt: skip
    assert_same(rows, target_rows(chosen, encoder()))
    assert [*dict.fromkeys(rows.task_of_row)] == ["t/3", "t/11", "t/2"]
    with pytest.raises(ConfigurationError, match="do not name their policy"):
        build_rows(trajectories, tmp_path, encoder(), tokenizer="bytes", policies=["mine"])


def test_the_fingerprint_of_a_tokenizer_depends_on_its_rules(base_model):
    from transformers import AutoTokenizer

    one, other = (AutoTokenizer.from_pretrained(base_model) for _ in range(2))
    assert tokenizer_hash(one) == tokenizer_hash(other)
    other.add_tokens(["a new token"])
    assert tokenizer_hash(one) != tokenizer_hash(other)


MEMORY = """
import resource, sys
import pyarrow, pyarrow.parquet
from amc_agents.critics import render
from amc_agents.training.dataset import read_records
from amc_agents.training.settings import Objective
from amc_agents.training.value.targets import returns_to_come
from amc_agents.training.value.row_building import build_rows

def heap():
    return int(open("/proc/self/status").read().partition("VmData:")[2].split()[0]) * 1024

# Each thread's stack counts as data, and a machine with many cores would start many.
pyarrow.set_cpu_count(1)
pyarrow.set_io_thread_count(1)
render._REMEMBERED = 50_000  # what an encoder remembers is bounded too, but by more than this test has room for
data, cache, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
encoder = render.Encoder(render.PLAIN, lambda text: [len(word) for word in text.split()], 2000)
# Only private memory counts, not files that are mapped for reading.
resource.setrlimit(resource.RLIMIT_DATA, (heap() + room,) * 2)
rows = build_rows(data, cache, encoder, Objective(soft=True, beta=1.0), tokenizer="words")
print(sum(len(row.ids) for row in rows), rows.summary.trajectories)
try:
    read_records(data)
except MemoryError:
    print("larger than memory")
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="the limit and the way to read what is used are Linux's")
def test_a_dataset_larger_than_memory_is_built_within_a_limit(tmp_path):
    rng, room = np.random.default_rng(0), 32 << 20
    letters = 0
    for shard in range(48):
        records = []
        for number in range(20):
            steps = tuple(Step("go", rng.bytes(4000).hex(" ", 4), reward=0.1) for _ in range(8))
            letters += sum(len(step.observation) for step in steps)
            records.append(
                LoggedTrajectory(Trajectory(Task(f"t/{shard}/{number // 4}", "walk"), steps, done=True), number % 4)
            )
        write_shard(tmp_path / "data", records)
    assert letters > 1.9 * room
    # The arenas of malloc, one per thread, would count too.
    environment = {
        **os.environ,
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "data"), str(tmp_path / "cache"), str(room)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    built, *larger = done.stdout.splitlines()
    assert int(built.split()[0]) > 960 * 8 * 1000
    assert built.split()[1:] == ["960"]
    assert larger == ["larger than memory"]  # reading all at once exceeds the limit
