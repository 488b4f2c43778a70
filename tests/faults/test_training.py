"""A training whose files grow too large, or whose data is damaged. (Storage, signals and clocks: `works`.)"""

from __future__ import annotations

import math
import os
import resource
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from amc_agents.errors import CheckpointError, ConfigurationError, StorageError
from amc_agents.training.dataset import LoggedTrajectory, write_shard
from tests.faults.leftovers import nothing_left
from tests.faults.test_wire import checked_message
from tests.faults.works import WORKS, base_model
from tests.training.toy_trajectories import decided_by_the_first_answer

TRAININGS = {work.name: work for work in WORKS if work.name.startswith("train")}
LIMITS = {"train value": (100, 2_000, 20_000, 60_000, 100_000), "train verdict": (100, 2_000, 20_000, 100_000),
          "train goal": (100, 2_000)}  # fmt: skip
"""Largest sizes of a file in bytes: each ends another write, by Python, by safetensors, by torch, or by a tokenizer."""


def ended_by(work, folder, limit):
    """Do the work in a forked process that may not write larger files; return its error's kind and message."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "no error"
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            work.run(folder)
        except Exception as error:
            said = f"{type(error).__name__}\n{error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        kind, _, message = pipe.read().partition("\n")
    os.waitpid(child, 0)
    return kind, message


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "limit"), [(name, limit) for name in LIMITS for limit in LIMITS[name]])
def test_a_file_that_cannot_grow_is_a_named_error_and_costs_nothing(name, limit, tmp_path):
    """The libraries that write weights ask the system themselves, so no hook of Python's sees it."""
    work = TRAININGS[name]
    whole, folder = (tmp_path / part for part in ("whole", "limited"))
    for each in (whole, folder):
        each.mkdir()
    work.run(whole)
    with nothing_left():
        kind, message = ended_by(work, folder, limit)
    assert kind == StorageError.__name__, message
    assert len(message) <= 400
    assert "Raise the limit" in message or "the disk is full" in message
    work.run(folder)
    assert work.result(folder) == work.result(whole)


@pytest.fixture
def train(tmp_path):
    """A function (data) -> None that trains a value model in `tmp_path`."""
    base = base_model(tmp_path / "out")
    value: Any = import_module("amc_agents.training.value.train_value")
    settings = replace(value.EMBEDDED, epochs=1, batch_size=3)
    return lambda data: value.train_value(base, data, tmp_path / "value", settings)


@pytest.mark.thorough
@pytest.mark.parametrize("damage", [
    pytest.param(lambda whole: b"", id="empty"),
    pytest.param(lambda whole: whole[: len(whole) // 2], id="cut"),
    pytest.param(lambda whole: whole[:-3], id="torn"),
    pytest.param(lambda whole: whole[:-900] + bytes(byte ^ 255 for byte in whole[-900:-8]) + whole[-8:], id="flipped"),
])  # fmt: skip
def test_a_damaged_shard_is_named_and_its_restoration_is_enough(damage, train, tmp_path):
    pytest.importorskip("pyarrow")
    plays = decided_by_the_first_answer(6, 2)
    write_shard(tmp_path / "data", [LoggedTrajectory(play, n % 2, "toy") for n, play in enumerate(plays)])
    (shard,) = (tmp_path / "data").glob("*.parquet")
    whole = shard.read_bytes()
    shard.write_bytes(damage(whole))
    with nothing_left(), pytest.raises(CheckpointError, match=shard.name) as raised:
        train(tmp_path / "data")
    checked_message(str(raised.value).replace(str(tmp_path), ""))
    assert not (tmp_path / "value").exists()
    shard.write_bytes(whole)
    train(tmp_path / "data")
    assert (tmp_path / "value" / "model.safetensors").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_refused_with_its_task(reward, train, tmp_path):
    plays = decided_by_the_first_answer(6, 2)
    steps = (*plays[3].steps[:-1], replace(plays[3].steps[-1], reward=reward))
    with nothing_left(), pytest.raises(ConfigurationError, match=plays[3].task.id) as raised:
        train([*plays[:3], replace(plays[3], steps=steps), *plays[4:]])
    checked_message(str(raised.value))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base"]
