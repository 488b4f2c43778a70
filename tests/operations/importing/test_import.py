"""`import_logs`: what is written, what a second import adds, and what is never written."""

import json
import math
import tracemalloc

import pytest

from amc_agents.critics.render import DIALOGUE, Encoder
from amc_agents.errors import CheckpointError, ConfigurationError, StorageError
from amc_agents.operations.importing import Outcomes, Reading, import_logs, importer, json_files
from amc_agents.training.dataset import dataset_hash, read_records, shards, write_shard
from amc_agents.training.value.row_building import build_rows


def chat(number, answer="done", **fields):
    messages = [{"role": "user", "content": f"do {number}"}]
    messages += [{"role": "assistant", "content": answer}] if answer else []
    return {"thread_id": f"t{number}", "messages": messages, **fields}


def log(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def source(tmp_path):
    return tmp_path / "chats.jsonl"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "data"


def returns(out):
    """Thread and turn -> return; None where it is unknown."""
    origins = [(json.loads(record.settings)["imported"], record) for record in read_records(out)]
    return {
        (origin["thread"], origin["turn"]): record.trajectory.return_ if record.outcome_known else None
        for origin, record in origins
    }


def table(tmp_path, text):
    path = tmp_path / "outcomes.csv"
    path.write_text(text)
    return path


# --- what is written ----------------------------------------------------------------------------------------


def test_an_unknown_outcome_is_marked_and_never_0(source, out):
    log(source, chat(1, solved=True), chat(2, solved=0.25), chat(3), chat(4, solved=None))
    report = import_logs(source, out, outcomes=Outcomes(reward="solved"), policy="shop-3")
    assert returns(out) == {("t1", 0): 1.0, ("t2", 0): 0.25, ("t3", 0): None, ("t4", 0): None}
    assert (report.trajectories, report.outcomes_known, report.outcomes_unknown) == (4, 2, 2)
    assert {record.policy for record in read_records(out)} == {"shop-3"}
    assert all(record.trajectory.done for record in read_records(out))


def test_trajectories_of_a_task_are_numbered(source, out):
    same = [{"id": number, "messages": chat(1)["messages"]} for number in range(3)]
    import_logs(log(source, *same, chat(2)), out)
    import_logs(log(source, *same, chat(2), {"id": 9, "messages": chat(1)["messages"]}), out)
    groups = {}
    for record in read_records(out):
        groups.setdefault(record.trajectory.task.instruction, []).append(record.group)
    assert groups == {"do 1": [0, 1, 2, 3], "do 2": [0]}


def test_a_field_can_name_the_task(source, out):
    log(source, chat(1, meta={"intent": "refund"}), chat(2, meta={"intent": "refund"}), chat(3))
    import_logs(source, out, reading=Reading(task="meta.intent"))
    tasks = [record.trajectory.task.id for record in read_records(out)]
    assert tasks[:2] == ["refund", "refund"]
    assert tasks[2].startswith("task-")


def test_the_report_counts_and_is_saved(source, out):
    log(source, chat(1, "word " * 100, score=1), chat(2, None), chat(3, score="good"), chat(1, "word " * 100))
    report = import_logs(source, out, outcomes=Outcomes(reward="score"))
    assert (report.trajectories, report.steps, report.duplicates, report.refused) == (1, 1, 1, 2)
    assert 120 <= report.tokens <= 130
    assert json.loads((out / "import-report.json").read_text())["duplicates"] == 1
    refused = [json.loads(line) for line in (out / "refused.jsonl").read_text().splitlines()]
    assert [each["where"] for each in refused] == ["chats.jsonl line 2", "chats.jsonl line 3"]
    assert "no message of the agent" in refused[0]["reason"]
    assert "'score' is a str" in refused[1]["reason"]


def test_text_cut_within_a_character_is_written(source, out):
    source.write_text(
        '{"id": 1, "messages": [{"role": "user", "content": "a\\ud83d"}, {"role": "assistant", "content": "b"}]}'
    )
    import_logs(source, out)
    assert [record.trajectory.task.instruction for record in read_records(out)] == ["a\ufffd"]


# --- again and again ----------------------------------------------------------------------------------------


def test_a_second_import_adds_only_what_is_new(source, out):
    import_logs(log(source, chat(1), chat(2)), out)
    before = dataset_hash(out)
    again = import_logs(source, out)
    assert (again.trajectories, again.imported_before, dataset_hash(out)) == (0, 2, before)
    more = import_logs(log(source, chat(1), chat(2), chat(3)), out)
    assert (more.trajectories, more.imported_before, more.dataset_trajectories) == (1, 2, 3)


def test_a_conversation_that_goes_on_adds_its_new_turns(source, out):
    grown = chat(1)
    import_logs(log(source, grown), out)
    grown["messages"] += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "here"}]
    assert import_logs(log(source, grown), out).trajectories == 1
    assert set(returns(out)) == {("t1", 0), ("t1", 1)}


def test_an_unfinished_run_waits_for_its_end_or_its_outcome(source, out):
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    waiting = {"role": "assistant", "content": "", "tool_calls": [call]}
    unfinished = [chat(n, None) | {"messages": [*chat(n, None)["messages"], waiting]} for n in (1, 2)]
    report = import_logs(log(source, *unfinished), out)
    assert (report.trajectories, report.unfinished) == (0, 2)
    unfinished[0]["messages"] += [
        {"role": "tool", "tool_call_id": "c", "content": "dark"},
        {"role": "assistant", "content": "I give up"},
    ]
    unfinished[1]["score"] = 0
    report = import_logs(log(source, *unfinished), out, outcomes=Outcomes(reward="score"))
    assert returns(out) == {("t1", 0): None, ("t2", 0): 0.0}
    assert (report.unfinished, report.cut_off) == (0, 1)


def test_another_text_under_the_same_id_is_refused(source, out):
    import_logs(log(source, chat(1)), out)
    report = import_logs(log(source, chat(1, "something else")), out)
    assert (report.trajectories, report.refused) == (0, 1)
    assert "another text was imported before" in next(iter(report.reasons))


def test_an_interrupted_import_keeps_what_it_read_and_goes_on(source, out, monkeypatch):
    log(source, *map(chat, range(10)))
    monkeypatch.setattr(importer, "_SHARD_ROWS", 3)
    written = []

    def full_disk(folder, records):
        if len(written) == 2:
            raise StorageError(str(folder), "the disk is full")
        written.append(write_shard(folder, records))

    monkeypatch.setattr(importer, "write_shard", full_disk)
    with pytest.raises(StorageError):
        import_logs(source, out)
    assert len(read_records(out)) == 6
    monkeypatch.setattr(importer, "write_shard", write_shard)
    report = import_logs(source, out)
    assert (report.trajectories, report.imported_before) == (4, 6)
    assert set(returns(out)) == {(f"t{number}", 0) for number in range(10)}


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_file(source, out, monkeypatch):
    monkeypatch.setattr(importer, "_SHARD_SIZE", 500_000)
    monkeypatch.setattr(json_files, "_AT_ONCE", 1_000_000)  # below the size of the file
    with source.open("w") as file:
        for number in range(300):
            file.write(json.dumps(chat(number, f"word{chr(97 + number % 26)} " * 8_000)) + "\n")
    assert source.stat().st_size > 12_000_000
    tracemalloc.start()
    try:
        assert import_logs(source, out).trajectories == 300
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6_000_000  # half of the file
    assert len(shards(out)) > 20


# --- outcomes that arrive later -----------------------------------------------------------------------------


def test_a_late_outcome_in_the_logs_updates_the_trajectory(source, out):
    rule = Outcomes(reward="score")
    import_logs(log(source, chat(1), chat(2, score=0)), out, outcomes=rule)
    report = import_logs(log(source, chat(1, score=1), chat(2, score=0)), out, outcomes=rule)
    assert (report.outcomes_updated, report.trajectories) == (1, 0)
    assert returns(out) == {("t1", 0): 1.0, ("t2", 0): 0.0}


def test_a_table_of_outcomes_is_joined_by_thread(source, out, tmp_path):
    import_logs(log(source, chat(1), chat(2), chat(3)), out)
    before = [record.trajectory.task for record in read_records(out)]
    joined = table(tmp_path, "value,thread_id\n1,t1\nfalse,t2\n,t3\n0.5,unheard-of\n")
    report = import_logs(None, out, outcomes=Outcomes(table=joined))
    assert returns(out) == {("t1", 0): 1.0, ("t2", 0): 0.0, ("t3", 0): None}
    assert (report.outcomes_updated, report.outcomes_unmatched, report.dataset_outcomes_known) == (2, 1, 2)
    assert [record.trajectory.task for record in read_records(out)] == before
    unchanged = dataset_hash(out)
    assert import_logs(None, out, outcomes=Outcomes(table=joined)).outcomes_updated == 0
    assert dataset_hash(out) == unchanged


def test_an_outcome_of_a_thread_counts_for_all_its_turns(source, out, tmp_path):
    two = chat(1)
    two["messages"] += [{"role": "user", "content": "more"}, {"role": "assistant", "content": "here"}]
    import_logs(log(source, two), out, outcomes=Outcomes(table=table(tmp_path, "thread_id,value\nt1,1\n")))
    assert returns(out) == {("t1", 0): 1.0, ("t1", 1): 1.0}


def test_a_table_takes_precedence_over_the_logs_for_good(source, out, tmp_path):
    log(source, chat(1, score=0))
    joined = table(tmp_path, "thread_id,value\nt1,1\n")
    import_logs(source, out, outcomes=Outcomes(reward="score", table=joined))
    assert returns(out) == {("t1", 0): 1.0}
    import_logs(source, out, outcomes=Outcomes(reward="score"))
    assert returns(out) == {("t1", 0): 1.0}
    import_logs(None, out, outcomes=Outcomes(table=table(tmp_path, "thread_id,value\nt1,0\n")))
    assert returns(out) == {("t1", 0): 0.0}


def test_only_shards_with_a_changed_outcome_are_rewritten(source, out, tmp_path, monkeypatch):
    monkeypatch.setattr(importer, "_SHARD_ROWS", 2)
    import_logs(log(source, *map(chat, range(6))), out)
    before = [path.stat().st_ino for path in shards(out)]
    import_logs(None, out, outcomes=Outcomes(table=table(tmp_path, "thread_id,value\nt3,1\n")))
    after = [path.stat().st_ino for path in shards(out)]
    assert [one != other for one, other in zip(before, after, strict=True)] == [False, True, False]


def test_a_function_computes_outcomes(source, out):
    def solved(run):
        return {"t1": True, "t2": 0.5}.get(run.origin.thread)

    import_logs(log(source, chat(1), chat(2), chat(3)), out, outcomes=Outcomes(function=solved))
    assert returns(out) == {("t1", 0): 1.0, ("t2", 0): 0.5, ("t3", 0): None}


def test_outcomes_that_cannot_be_used_are_named(source, out, tmp_path):
    log(source, chat(1))
    with pytest.raises(ConfigurationError, match="reward and from function: choose one"):
        Outcomes(reward="a", function=lambda run: 1.0)
    with pytest.raises(ConfigurationError, match="only LangSmith runs and spans"):
        import_logs(source, out, outcomes=Outcomes(feedback="user"))
    with pytest.raises(ConfigurationError, match="reward function failed"):
        import_logs(source, out, outcomes=Outcomes(function=lambda run: 1 / 0))
    with pytest.raises(CheckpointError, match="line 3: expected a finite number"):
        import_logs(source, out, outcomes=Outcomes(table=table(tmp_path, "thread_id,value\nt1,1\nt2,nan\n")))
    with pytest.raises(CheckpointError, match="lacks the column thread_id"):
        import_logs(source, out, outcomes=Outcomes(table=table(tmp_path, "id,value\nt1,1\n")))
    with pytest.raises(ConfigurationError, match="nothing to import"):
        import_logs(None, out)
    report = import_logs(source, out, outcomes=Outcomes(function=lambda run: math.inf))
    assert "is inf: expected a finite number" in next(iter(report.reasons))


def test_training_leaves_out_trajectories_without_an_outcome(source, out, tmp_path):
    import_logs(log(source, chat(1, score=1), chat(2), chat(3, score=0)), out, outcomes=Outcomes(reward="score"))
    encoder = Encoder(DIALOGUE, lambda text: [ord(letter) for letter in text], max_tokens=None)
    rows = build_rows(out, tmp_path / "cache", encoder, tokenizer="letters")
    assert {rows.tasks[row] for row in range(len(rows.tasks))} == {
        record.trajectory.task.id for record in read_records(out) if record.outcome_known
    }
    import_logs(log(source, chat(1)), tmp_path / "unknown")
    with pytest.raises(CheckpointError, match="no trajectory with a known outcome"):
        build_rows(tmp_path / "unknown", tmp_path / "cache", encoder, tokenizer="letters")


# --- personal data ------------------------------------------------------------------------------------------


def redact(text):
    return text.replace("ann@example.org", "[MAIL]").replace("Ann", "[NAME]")


def test_nothing_is_written_before_redaction(source, out):
    call = {"id": "c", "type": "function", "function": {"name": "mail", "arguments": '{"to": "ann@example.org"}'}}
    messages = [
        {"role": "user", "content": "I am Ann"},
        {"role": "assistant", "content": "Hello Ann", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "sent to Ann"},
        {"role": "assistant", "content": "Done, Ann"},
    ]
    log(
        source,
        {"thread_id": "ann@example.org", "messages": messages},
        {"messages": [{"role": "Ann", "content": "Ann"}]},
    )
    report = import_logs(source, out, redact=redact)
    assert (report.trajectories, report.refused, report.personal_data) == (1, 1, {})
    (record,) = read_records(out)
    assert record.trajectory.task.instruction == "I am [NAME]"
    assert record.trajectory.steps[0].action == '{"args": {"to": "[MAIL]"}, "name": "mail"}'
    written = repr(record) + "".join(path.read_text(errors="replace") for path in out.iterdir() if path.is_file())
    assert "Ann" not in written
    assert "ann@" not in written


def test_an_id_that_was_redacted_still_joins(source, out, tmp_path):
    log(source, chat(1) | {"thread_id": "ann@example.org"}, chat(2))
    import_logs(source, out, redact=redact)
    assert import_logs(source, out, redact=redact).imported_before == 2
    joined = Outcomes(table=table(tmp_path, "thread_id,value\nann@example.org,1\nt2,0\n"))
    import_logs(None, out, outcomes=joined, redact=redact)
    assert sorted(returns(out).values()) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("broken", "part"), [(lambda text: 1 / 0, "ZeroDivisionError"), (lambda text: None, "NoneType")]
)
def test_a_redaction_that_fails_ends_the_import(source, out, broken, part):
    with pytest.raises(ConfigurationError, match=part):
        import_logs(log(source, chat(1)), out, redact=broken)
    assert shards(out) == []


def test_personal_data_is_hinted_at(source, out):
    log(
        source,
        chat(1, "Write to ann@example.org"),
        chat(2, "card 4111 1111 1111 1111"),
        chat(3, "order 4111111111111112"),
    )
    report = import_logs(source, out)
    assert report.personal_data == {"e-mail address": 1, "card number": 1}
    assert any("an e-mail address: consider --redact" in note for note in report.notes())


def test_two_imports_into_a_folder_do_not_mix(source, out):
    log(source, chat(1))

    def second(run):
        import_logs(source, out)

    with pytest.raises(ConfigurationError, match=r"reward function failed.*in use by another process"):
        import_logs(source, out, outcomes=Outcomes(function=second))
