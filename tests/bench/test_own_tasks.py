from __future__ import annotations

import json

import pytest

from amc_agents.bench.own.tasks import read_tasks, tasks_hash
from amc_agents.errors import ConfigurationError


def written(folder, *lines):
    path = folder / "tasks.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def line(number, **fields):
    return {"id": f"t{number}", "instruction": f"Do {number}.", **fields}


def test_other_fields_are_the_payload(tmp_path):
    path = written(tmp_path, "\ufeff" + json.dumps(line(1, answer="4", split="train")), "", line(2, answer="\u2028"))
    first, second = read_tasks(path)
    assert (first.id, first.instruction, first.payload) == ("t1", "Do 1.", {"answer": "4"})
    assert second.payload == {"answer": "\u2028"}


def test_splits_share_no_task_and_do_not_move_when_tasks_are_added(tmp_path):
    few = written(tmp_path, *(line(number) for number in range(20)))
    train = {task.id for task in read_tasks(few, "train")}
    test = {task.id for task in read_tasks(few, "test")}
    assert train
    assert test
    assert train.isdisjoint(test)
    assert len(train | test) == 20
    more = written(tmp_path, *(line(number) for number in range(40)))
    assert train <= {task.id for task in read_tasks(more, "train")}
    assert test <= {task.id for task in read_tasks(more, "test")}


def test_a_line_may_name_its_split(tmp_path):
    path = written(tmp_path, line(1, split="train"), line(2, split="test"), line(3, split="test"))
    assert [task.id for task in read_tasks(path, "test")] == ["t2", "t3"]
    assert [task.id for task in read_tasks(path, "test", first=1)] == ["t3"]
    assert tasks_hash(read_tasks(path)) != tasks_hash(read_tasks(path, "test"))


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ((line(1), "{"), "line 2 is not JSON"),
        ((line(1), "", "[]"), "line 3 is a JSON list"),
        ((line(1), line(2), line(1)), "line 3 repeats the id 't1' of line 1"),
        (({"id": "a"},), "line 1: 'instruction' must be a text that is not empty, it is missing"),
        (({"id": 1, "instruction": "x"},), "line 1: 'id' must be a text that is not empty, got 1"),
        ((line(1, split="dev"),), "line 1: 'split' must be \"train\" or \"test\", got 'dev'"),
        (("",), "holds no tasks"),
        ((line(1, split="train"),), 'no task of the split "test", of 1 tasks'),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_line(tmp_path, lines, part):
    with pytest.raises(ConfigurationError) as caught:
        read_tasks(written(tmp_path, *lines), "test")
    assert part in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_missing_file_and_an_unknown_split(tmp_path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_tasks(tmp_path / "none.jsonl")
    with pytest.raises(ConfigurationError, match="--split"):
        read_tasks(tmp_path / "none.jsonl", "dev")
