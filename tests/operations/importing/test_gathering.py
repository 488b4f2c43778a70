"""Runs in several files, in an archive, or in the lines of a file: Harbor, inspect_ai, Claude Code, Codex."""

import io
import json
import zipfile

import pytest

from amc_agents.errors import CheckpointError
from amc_agents.operations.importing import Outcomes, Reading, Refused, gathering, import_logs, read
from amc_agents.training.dataset import read_records
from tests.operations.importing.test_forms import ATIF, FORMS, STEPS, THOUGHT, log

CLAUDE, CODEX, INSPECT = (FORMS[name][0][0] for name in ("Claude Code", "Codex", "inspect_ai"))


def steps(run):
    assert not isinstance(run, Refused), run
    return [(step.thought, step.action, step.observation) for step in run.trajectory.steps]


def measured(run):
    origin = run.origin
    return (origin.trial, origin.started, origin.ended, origin.tokens, origin.cost)


def imported(source, out, **settings):
    import_logs(source, out, **settings)
    return {
        (record.trajectory.task.id, json.loads(record.settings)["imported"]["trial"]): record.trajectory.return_
        for record in read_records(out)
    }


# --- Harbor --------------------------------------------------------------------------------------------------


def trial(folder, name, *, document=ATIF, **fields):
    result = {
        "id": "1", "task_name": "fix", "trial_name": name, "task_id": {"path": "tasks/fix"},
        "agent_result": {"n_input_tokens": 90, "n_cache_tokens": 50, "n_output_tokens": 10, "cost_usd": 0.5},
        "verifier_result": {"rewards": {"reward": 1.0}}, "exception_info": None,
        "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T01:00:00Z",
        "agent_execution": {"started_at": "2026-01-01T00:10:00Z", "finished_at": "2026-01-01T00:20:00Z"},
    } | fields  # fmt: skip
    (folder / name / "agent").mkdir(parents=True)
    (folder / name / "result.json").write_text(json.dumps(result, indent=4))
    (folder / name / "config.json").write_text("{}")
    (folder / name / "agent" / "session.jsonl").write_text('{"messages": "the agent\'s own log"}\n')
    if document:
        (folder / name / "agent" / "trajectory.json").write_text(json.dumps(document))


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "result.json").write_text(json.dumps({"id": "j", "started_at": "x", "n_total_trials": 3, "stats": {}}))
    return folder


def test_the_trials_of_a_harbor_job_are_runs_with_their_results(job, tmp_path):
    trial(job, "fix__a")
    trial(job, "fix__b", verifier_result={"rewards": {"tests": 0.25}}, agent_result=None, agent_execution=None)
    trial(job, "fix__c", verifier_result=None)
    trial(job, "fix__d", verifier_result={"rewards": {"f2p": 1, "p2p": 0}})
    trial(job, "fix__e", document=None)
    *runs, refused = read(job)
    assert [steps(run) for run in runs] == [STEPS] * 4
    assert measured(runs[0]) == ("fix__a", "2026-01-01T00:10:00Z", "2026-01-01T00:20:00Z", 100, 0.5)
    assert measured(runs[1]) == ("fix__b", "2026-01-01T00:00:00Z", "2026-01-01T01:00:00Z", None, None)
    assert (refused.where, "writes none as ATIF" in refused.reason) == ("fix__e/agent/trajectory.json", True)
    returns = imported(job, tmp_path / "data", outcomes=Outcomes(reward="reward"))
    assert returns == {
        ("fix", "fix__a"): 1, ("fix", "fix__b"): 0.25, ("fix", "fix__c"): pytest.approx(float("nan"), nan_ok=True),
        ("fix", "fix__d"): pytest.approx(float("nan"), nan_ok=True),
    }  # fmt: skip
    by_field = imported(job, tmp_path / "more", outcomes=Outcomes(reward="verifier_result.rewards.p2p"))
    assert by_field["fix", "fix__d"] == 0


def test_a_harbor_job_without_trials_writes_nothing(job, tmp_path):
    with pytest.raises(CheckpointError, match="Harbor job without a trial that has ended"):
        import_logs(job, tmp_path / "data")
    assert not (tmp_path / "data").exists()


# --- inspect_ai ----------------------------------------------------------------------------------------------


def sample(name="s", epoch=1, **fields):
    return {**INSPECT["samples"][0], "id": name, "epoch": epoch, "uuid": f"{name}-{epoch}", **fields}


def eval_log(path, *samples, method=zipfile.ZIP_DEFLATED):
    """Write an `.eval` archive as inspect_ai does; Python's zipfile cannot write Zstandard, so that is marked after."""
    members = {"header.json": INSPECT | {"samples": None}, "summaries.json": [{"id": "s"}]}
    members |= {f"samples/{each['id']}_epoch_{each['epoch']}.json": each for each in samples}
    content = {name: json.dumps(value).encode() for name, value in members.items()}
    if method != gathering._ZSTANDARD:
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, text in content.items():
                archive.writestr(name, text)
        return path
    zstandard = pytest.importorskip("zstandard")
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, zstandard.ZstdCompressor().compress(text))
    marked = bytearray(path.read_bytes())
    for signature, place in ((b"PK\3\4", 8), (b"PK\1\2", 10)):
        at = -1
        while (at := marked.find(signature, at + 1)) >= 0:
            marked[at + place] = method
    path.write_bytes(marked)
    return path


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, gathering._ZSTANDARD])
def test_the_samples_of_an_eval_archive_are_runs(tmp_path, method):
    path = eval_log(tmp_path / "a.eval", sample(), sample(epoch=2, scores={"includes": {"value": "I"}}), method=method)
    first, second = read(path)
    assert (steps(first), steps(second)) == (STEPS, STEPS)
    assert measured(first) == ("1", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", 30, 0.25)
    assert imported(path, tmp_path / "data") == {("repair/s", "1"): 1, ("repair/s", "2"): 0}


@pytest.mark.parametrize(
    ("scores", "reward"),
    [({"a": {"value": "P"}}, 0.5), ({"a": {"value": 0.25}}, 0.25), ({"a": {"value": True}}, 1), ({}, None),
     ({"a": {"value": "C"}, "b": {"value": "I"}}, None)],
)  # fmt: skip
def test_the_only_score_of_a_sample_is_its_outcome(tmp_path, scores, reward):
    source = log(tmp_path, INSPECT | {"samples": [sample(scores=scores)]})
    (run,) = read(source)
    assert run.origin.outcome == reward
    if len(scores) > 1:
        rule = Outcomes(reward="scores.a")
        assert imported(source, tmp_path / "data", outcomes=rule) == {("repair/s", "1"): 1}


def test_a_sample_without_usage_or_messages_has_none(tmp_path):
    bare = {key: value for key, value in sample().items() if key not in ("model_usage", "started_at", "completed_at")}
    run, refused = read(log(tmp_path, INSPECT | {"samples": [bare, {"id": 1, "epoch": 1}]}))
    assert measured(run) == ("1", "", "", None, None)
    assert "unknown form (KeyError)" in refused.reason


def test_a_damaged_archive_is_refused_and_the_others_are_read(tmp_path):
    whole = eval_log(tmp_path / "b.eval", sample()).read_bytes()
    (tmp_path / "a.eval").write_bytes(whole[:-40])
    with pytest.raises(CheckpointError, match=r"cut off \(BadZipFile\): copy it again"):
        import_logs(tmp_path / "a.eval", tmp_path / "data")
    assert not (tmp_path / "data").exists()
    refused, run = read(tmp_path)
    assert isinstance(refused, Refused)
    assert steps(run) == STEPS
    changed = bytearray(whole)
    changed[whole.find(b"samples/s_epoch_1.json") + 30] ^= 255
    (tmp_path / "a.eval").write_bytes(changed)
    assert "damaged" in next(read(tmp_path)).reason
    empty = io.BytesIO()
    zipfile.ZipFile(empty, "w").close()
    (tmp_path / "a.eval").write_bytes(empty.getvalue())
    assert "without header.json" in next(read(tmp_path)).reason


def test_a_sample_larger_than_memory_allows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(gathering, "LONGEST", 600)
    refused, *_ = read(eval_log(tmp_path / "a.eval", sample(target="x" * 1000)), Reading(kind="chat"))
    assert "longer than" in refused.reason


# --- sessions of coding agents -------------------------------------------------------------------------------


def test_side_chains_and_repeated_usage_of_claude_code_do_not_count(tmp_path):
    (run,) = read(log(tmp_path, *CLAUDE))
    # 5 + 20 + 100 + 10 of the first answer, which has two lines, and 100 + 5 of the second.
    assert measured(run) == ("", "2026-01-01T00:00:01Z", "2026-01-01T00:00:09Z", 240, None)
    assert run.origin.thread == "cc-1"
    assert "SIDE" not in json.dumps(steps(run))
    assert run.trajectory.task.instruction == "Fix the test"


def test_the_file_of_a_sub_agent_is_no_run(tmp_path):
    (tmp_path / "main.jsonl").write_text("".join(json.dumps(line) + "\n" for line in CLAUDE))
    side = [{**line, "isSidechain": True} for line in CLAUDE]
    (tmp_path / "agent-1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in side))
    spawned = {**CODEX[0], "payload": {"id": "x", "source": {"subagent": {"thread_spawn": {}}}}}
    (tmp_path / "rollout-2.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [spawned, *CODEX[1:]]))
    assert [steps(run) for run in read(tmp_path)] == [THOUGHT]


def test_what_the_user_took_back_is_left_out(tmp_path):
    *start, last = CLAUDE
    wrong = {**CLAUDE[2], "uuid": "w", "parentUuid": last["uuid"], "message": {"role": "user", "content": "No, undo"}}
    said = {"role": "assistant", "content": [{"type": "text", "text": "Undone"}], "id": "m9"}
    answer = {**last, "uuid": "x", "parentUuid": "w", "message": said}
    again = {**wrong, "uuid": "y", "message": {"role": "user", "content": "Thanks"}}
    final = {**answer, "uuid": "z", "parentUuid": "y", "message": {**said, "id": "m10"}}
    runs = list(read(log(tmp_path, *start, last, wrong, answer, again, final)))
    assert [steps(run) for run in runs] == [THOUGHT, [("", "Undone", "")]]
    assert "Thanks" in runs[1].trajectory.task.instruction
    assert "No, undo" not in runs[1].trajectory.task.instruction
    # What is logged for the session is not what one of its two runs took.
    assert measured(runs[0]) == ("", "", "", None, None)


def test_codex_prompts_are_what_was_typed_and_its_tokens_the_last_total(tmp_path):
    (run,) = read(log(tmp_path, *CODEX))
    assert measured(run) == ("", "2026-01-01T00:00:01Z", "2026-01-01T00:00:08Z", 130, None)
    assert (run.origin.thread, run.trajectory.task.instruction) == ("cx-1", "Fix the test")
    without_events = [line for line in CODEX if line["type"] != "event_msg"]
    (run,) = read(log(tmp_path, *without_events))
    assert "<environment_context>" in run.trajectory.task.instruction
    assert run.origin.tokens is None


def test_a_shell_call_of_codex_is_a_call(tmp_path):
    call = {"type": "local_shell_call", "call_id": "t", "status": "completed", "action": {"command": ["ls"]}}
    lines = [{**line, "payload": call} if line["payload"].get("type") == "function_call" else line for line in CODEX]
    (run,) = read(log(tmp_path, *lines))
    assert steps(run)[0] == ("Look first", '{"args": {"command": ["ls"]}, "name": "shell"}', "a.py")


@pytest.mark.parametrize("lines", [CLAUDE, CODEX])
def test_a_session_that_lost_a_line_is_refused(tmp_path, lines):
    path = log(tmp_path, *lines)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=rf"logs.jsonl line {len(lines)}: not JSON"):
        import_logs(path, tmp_path / "data")
    assert not (tmp_path / "data").exists()
    (refused,) = read(path, Reading(kind="chat"))
    assert isinstance(refused, Refused)


def test_a_session_may_begin_with_other_lines(tmp_path):
    titles = [{"type": "file-history-snapshot", "messageId": "1", "snapshot": {}}] * 3
    (run,) = read(log(tmp_path, *titles, *CLAUDE))
    assert steps(run) == THOUGHT


def test_outcomes_join_sessions_by_their_ids(tmp_path):
    table = tmp_path / "outcomes.csv"
    table.write_text("thread_id,value\ncx-1,0.5\n")
    report = import_logs(log(tmp_path, *CODEX), tmp_path / "data", outcomes=Outcomes(table=table))
    assert (report.trajectories, report.outcomes_known) == (1, 1)
