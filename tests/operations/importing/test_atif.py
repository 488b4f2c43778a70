"""ATIF documents: written from the agent's messages as the format asks, read as the run."""

import json

import pytest
from langchain_core.messages import AIMessage

from amc_agents.operations.importing import Outcomes, Refused, import_logs, read
from amc_agents.training.dataset import read_records
from tests.operations.importing.shop import PROMPT, seen_by_a_run, shop_agent, texts


def document(messages, **fields):
    steps = [{"step_id": 1, "source": "system", "message": PROMPT}]
    for message in messages:
        if message.type == "tool":
            result = {"source_call_id": message.tool_call_id, "content": message.text}
            steps[-1].setdefault("observation", {"results": []})["results"].append(result)
            continue
        step = {
            "step_id": len(steps) + 1,
            "source": "agent" if message.type == "ai" else "user",
            "message": message.text,
        }
        if message.type == "ai" and message.tool_calls:
            step["tool_calls"] = [
                {"tool_call_id": call["id"], "function_name": call["name"], "arguments": call["args"]}
                for call in message.tool_calls
            ]
        steps.append(step)
    return {
        "schema_version": "ATIF-v1.7",
        "session_id": "s1",
        "agent": {"name": "shop", "version": "1"},
        "steps": steps,
        **fields,
    }


@pytest.fixture
def messages():
    return shop_agent().invoke({"messages": [("user", "desk lamp")]})["messages"]


@pytest.mark.parametrize("indent", [None, 2])
def test_a_document_reads_as_the_run_that_amc_would_have_seen(tmp_path, messages, indent):
    (tmp_path / "a.json").write_text(json.dumps(document(messages), indent=indent))
    (run,) = read(tmp_path)
    assert texts(run.trajectory) == texts(seen_by_a_run([("user", "desk lamp")]))
    assert (run.origin.thread, run.over, run.cut_off) == ("s1", True, False)


def test_a_folder_of_documents_is_imported(tmp_path, messages):
    logs = tmp_path / "logs"
    for number in range(3):
        (logs / f"{number}").mkdir(parents=True)
        text = json.dumps(document(messages, session_id=f"s{number}", extra={"reward": number / 2}))
        (logs / f"{number}" / "trajectory.json").write_text(text)
    report = import_logs(logs, tmp_path / "data", outcomes=Outcomes(reward="extra.reward"))
    assert report.trajectories == 3
    assert [record.trajectory.return_ for record in read_records(tmp_path / "data")] == [0.0, 0.5, 1.0]


def test_reasoning_and_parts_are_read_as_at_run_time(tmp_path):
    steps = [
        {
            "source": "user",
            "message": [{"type": "text", "text": "look at "}, {"type": "image"}, {"type": "text", "text": "this"}],
        },
        {"source": "agent", "message": "seen", "reasoning_content": "it is a lamp"},
    ]
    (tmp_path / "a.json").write_text(json.dumps({"schema_version": "ATIF-v1.6", "steps": steps}))
    (run,) = read(tmp_path)
    assert run.trajectory.task.instruction == "look at this"
    step = run.trajectory.steps[0]
    message = AIMessage("seen", additional_kwargs={"reasoning_content": "it is a lamp"})
    assert (step.thought, step.action) == ("it is a lamp", "seen")
    assert run.messages[-1] == message


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"steps": "none"}, "expected a list of `steps`"),
        ({"steps": [{"source": "robot", "message": "x"}]}, "expected user, system or agent"),
        ({"steps": [{"source": "agent", "message": "x", "tool_calls": [{"name": "y"}]}]}, "unknown form"),
        ({"steps": [{"source": "user", "message": {"a": 1}}]}, "expected text"),
        ({"steps": [{"source": "user", "message": "x"}]}, "no message of the agent"),
        ({"continued_trajectory_ref": "b.json"}, "goes on in another file"),
    ],
)
def test_other_documents_are_refused(tmp_path, messages, change, part):
    (tmp_path / "a.json").write_text(json.dumps(document(messages) | change))
    (refused,) = read(tmp_path)
    assert isinstance(refused, Refused)
    assert part in refused.reason
