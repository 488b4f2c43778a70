import json

import pytest

from amc_agents.training.dataset import read_records

FUNCTIONS = """
def redact(text):
    return text.replace("Ann", "[NAME]")

def outcome(run):
    return len(run.trajectory.steps)

number = 3
"""


@pytest.fixture
def chats(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [
        {"id": f"t{n}", "messages": [{"role": "user", "content": "I am Ann"}, {"role": "assistant", "content": "Hi"}]}
        for n in range(3)
    ]
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + "broken\n")
    (tmp_path / "my_import_functions.py").write_text(FUNCTIONS)
    return path


def test_import_prints_a_report(command, chats, tmp_path):
    code, printed, error = command("import", chats, "--out", tmp_path / "data")
    assert (code, error) == (0, "")
    words = " ".join(printed.split())
    for part in (
        "new trajectories │ 3",
        "without an outcome yet │ 3",
        "refused │ 1",
        "Refused: 1 x not JSON",
        "refused.jsonl",
        "No outcome is known",
        "3 trajectories of 1 tasks, 0 with a known outcome",
    ):
        assert part in words


def test_import_reports_to_programs(command, chats, tmp_path):
    code, printed, error = command("import", chats, "--out", tmp_path / "data", "--json")
    assert code == 0
    told = json.loads(printed)
    assert (told["trajectories"], told["refused"], told["dataset_trajectories"]) == (3, 1, 3)
    assert told["out"] == str(tmp_path / "data")
    assert any("No outcome is known" in note for note in told["notes"])
    assert "imported" in error


def test_import_takes_functions_and_a_table_from_the_working_directory(command, chats, tmp_path):
    data = tmp_path / "data"
    functions = ("--redact", "my_import_functions:redact", "--reward-function", "my_import_functions:outcome")
    code, printed, _ = command("import", chats, "--out", data, *functions, "--policy", "shop")
    assert code == 0
    assert f"Next: amc advise {data}" in printed  # Three runs of a task.
    assert [record.trajectory.return_ for record in read_records(data)] == [1.0] * 3
    assert {record.trajectory.task.instruction for record in read_records(data)} == {"I am [NAME]"}
    (tmp_path / "outcomes.csv").write_text("thread_id,value\nt0,0\n")
    code, printed, _ = command("import", "--out", data, "--outcomes", "outcomes.csv")
    assert code == 0
    assert "outcomes updated" in printed
    one_each = ("--thread", "id", "--task", "id")
    code, printed, _ = command("import", chats, "--out", tmp_path / "one", *functions, *one_each)
    assert (code, "Next: amc train value" in printed, "amc advise" in printed) == (0, True, False)
    assert sorted(record.trajectory.return_ for record in read_records(data)) == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["missing.jsonl"], "no logs in missing.jsonl"),
        ([], "nothing to import"),
        (["chats.jsonl", "--redact", "my_import_functions"], "expected MODULE:NAME"),
        (["chats.jsonl", "--redact", "my_import_functions:nothing"], "expected MODULE:NAME"),
        (["chats.jsonl", "--redact", "my_import_functions:number"], "expected a function, got int"),
    ],
)
def test_wrong_arguments_are_one_line(command, chats, arguments, part):
    code, _, error = command("import", *arguments, "--out", "data")
    assert code == 2
    assert part in error
    assert len(error.splitlines()) == 1
    assert len(error) <= 400
