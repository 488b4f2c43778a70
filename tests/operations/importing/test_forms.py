"""Every form of logs that docs/importing.md lists, from examples in the published form."""

import json
from pathlib import Path

import pytest

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.operations.importing import Outcomes, Reading, Refused, import_logs, json_files, read
from amc_agents.training.dataset import read_records

ARGS = {"command": "ls"}
TEXT = json.dumps(ARGS)
ASKED = {"role": "user", "content": "Fix the test"}
DONE = {"role": "assistant", "content": "Done"}
STEPS = [("", '{"args": {"command": "ls"}, "name": "Bash"}', "a.py"), ("", "Done", "")]
THOUGHT = [("Look first", *STEPS[0][1:]), STEPS[1]]


def function(arguments, **fields):
    return {"type": "function", "function": {"name": "Bash", "arguments": arguments}, **fields}


def chat(call, answer, **fields):
    return {"messages": [ASKED, {"role": "assistant", "content": None, **call}, answer, DONE], **fields}


def tool(content="a.py", **fields):
    return {"role": "tool", "content": content, **fields}


def anthropic(*parts, result="a.py", **fields):
    use = {"type": "tool_use", "id": "t1", "name": "Bash", "input": ARGS}
    answer = {"type": "tool_result", "tool_use_id": "t1", "content": result}
    said = [{"role": "assistant", "content": [*parts, use]}, {"role": "user", "content": [answer]}]
    return {"messages": [ASKED, *said, {"role": "assistant", "content": [{"type": "text", "text": "Done"}]}], **fields}


def span(number, attributes, **fields):
    return {"context": {"trace_id": "a", "span_id": str(number)}, "start_time": f"2026-01-01T00:00:0{number}Z",
            "attributes": attributes, **fields}  # fmt: skip


def genai(*messages, answer):
    sides = {"input": messages, "output": [answer]}
    logged = {f"gen_ai.{side}.messages": json.dumps(said) for side, said in sides.items()}
    return {"gen_ai.operation.name": "chat", **logged}


def parts(role, *listed):
    return {"role": role, "parts": [*listed]}


PROMPT = parts("user", {"type": "text", "content": "Fix the test"})
CALLED = parts("assistant", {"type": "tool_call", "id": "t", "name": "Bash", "arguments": TEXT})
ANSWERED = parts("user", {"type": "tool_call_response", "id": "t", "response": "a.py"})
SAID = parts("assistant", {"type": "text", "content": "Done"})


def inference(*messages, answer):
    """OpenInference as Phoenix nests it."""
    sides = {"input": messages, "output": [answer]}
    logged = {f"{side}_messages": [{"message": each} for each in said] for side, said in sides.items()}
    return {"openinference": {"span": {"kind": "LLM"}}, "llm": logged}


CALL = {"tool_call": {"id": "t", "function": {"name": "Bash", "arguments": TEXT}}}
PHOENIX = [ASKED, {"role": "assistant", "tool_calls": [CALL]}, tool(tool_call_id="t")]
TRACELOOP = {
    "llm.request.type": "chat",
    "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": '[{"type": "text", "text": "Fix the test"}]',
}  # fmt: skip
TRACELOOP_CALL = {
    "role": "assistant",
    "tool_calls.0.id": "t",
    "tool_calls.0.name": "Bash",
    "tool_calls.0.arguments": TEXT,
}
TRACELOOP_REST = {
    **{f"gen_ai.prompt.1.{name}": value for name, value in TRACELOOP_CALL.items()},
    "gen_ai.prompt.2.role": "tool", "gen_ai.prompt.2.content": "a.py", "gen_ai.prompt.2.tool_call_id": "t",
    "gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Done",
}  # fmt: skip

ITEMS = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look first"}]},
    {"type": "function_call", "call_id": "t", "name": "Bash", "arguments": TEXT},
    {"type": "function_call_output", "call_id": "t", "output": "a.py"},
]
FINAL = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done"}]}
INPUT = {"role": "user", "content": [{"type": "input_text", "text": "Fix the test"}]}

ATIF = {"schema_version": "ATIF-v1.7", "session_id": "s", "steps": [
    {"source": "user", "message": "Fix the test", "timestamp": "2026-01-01T00:00:00Z"},
    {"source": "agent", "message": "", "observation": {"results": [{"content": "a.py", "source_call_id": "t"}]},
     "tool_calls": [{"tool_call_id": "t", "function_name": "Bash", "arguments": ARGS}]},
    {"source": "agent", "message": "Done", "timestamp": "2026-01-01T00:01:00Z"},
]}  # fmt: skip
ENVELOPE = {
    "trial_name": "fix__1", "task_name": "fix", "reward": 1, "started_at": "10:00", "ended_at": "10:05",
    "trajectory": {"schema_version": "atif-converted-1.0", "session_id": "s", "steps": [
        ATIF["steps"][0],
        {"source": "agent", "message": "", "tool_calls": [{"tool_name": "Bash", "arguments": ARGS}],
         "observation": {"results": [{"content": "a.py"}]}},
        ATIF["steps"][2],
    ]},
}  # fmt: skip


def claude(number, role, content, **fields):
    message = {"role": role, "content": content, **fields.pop("message", {})}
    return {
        "type": role, "sessionId": "cc-1", "uuid": str(number), "parentUuid": str(number - 1), "isSidechain": False,
        "timestamp": f"2026-01-01T00:00:0{number}Z", "version": "2.1.0", "message": message, **fields,
    }  # fmt: skip


USED = {"input_tokens": 5, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 100, "output_tokens": 10}
BLOCKS = anthropic({"type": "thinking", "thinking": "Look first", "signature": "x"})["messages"]
CLAUDE_CODE = [
    {"type": "summary", "summary": "A title", "leafUuid": "9"},
    claude(0, "user", "Caveat: written by the program", isMeta=True),
    claude(1, "user", "Fix the test"),
    claude(2, "assistant", BLOCKS[1]["content"][:1], message={"id": "m1", "usage": USED | {"output_tokens": 1}}),
    claude(3, "assistant", BLOCKS[1]["content"][1:], message={"id": "m1", "usage": USED}),
    claude(4, "user", "SIDE: look", isSidechain=True),
    claude(5, "assistant", [{"type": "text", "text": "SIDE"}], message={"id": "m2", "usage": USED}, isSidechain=True),
    {"type": "system", "subtype": "compact_boundary", "uuid": "6", "parentUuid": None, "sessionId": "cc-1"},
    claude(7, "user", "A summary of what was said", isCompactSummary=True),
    claude(8, "user", BLOCKS[2]["content"], toolUseResult={"stdout": "a.py"}),
    claude(8, "user", BLOCKS[2]["content"]),  # a resumed session repeats lines
    claude(9, "assistant", BLOCKS[3]["content"],
           message={"id": "m3", "usage": {"input_tokens": 100, "output_tokens": 5}}),
]  # fmt: skip


def rollout(kind, payload):
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


CODEX = [
    rollout("session_meta", {"id": "cx-1", "cli_version": "0.142.5", "source": "exec"}),
    rollout("response_item", {"type": "message", "role": "developer", "content": INPUT["content"]}),
    rollout("response_item", {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "<environment_context>here</environment_context>"}]}),
    rollout("response_item", {"type": "message", **INPUT}),
    rollout("event_msg", {"type": "user_message", "message": "Fix the test"}),
    rollout("turn_context", {"model": "m"}),
    *(rollout("response_item", item) for item in ITEMS[:2]),
    rollout("event_msg", {"type": "token_count", "info": {"total_token_usage": {"total_tokens": 60}}}),
    rollout("response_item", ITEMS[2]),
    rollout("response_item", {"type": "ghost_snapshot", "ghost_commit": {}}),
    rollout("event_msg", {"type": "agent_message", "message": "Done"}),
    rollout("response_item", FINAL),
    rollout("event_msg", {"type": "token_count", "info": {"total_token_usage": {"total_tokens": 130}}}),
    rollout("event_msg", {"type": "token_count", "info": None}),
]  # fmt: skip
for number, line in enumerate(line for line in CODEX if line["type"] == "response_item"):
    line["timestamp"] = f"2026-01-01T00:00:0{number + 1}Z"

INSPECT = {
    "version": 2, "status": "success", "eval": {"task": "repair", "run_id": "r", "packages": {"inspect_ai": "0.3.285"}},
    "samples": [{
        "id": "s", "epoch": 1, "uuid": "u", "input": "Fix the test", "target": "Done", "messages": [
            {"role": "system", "content": "You work."}, {**ASKED, "source": "input"},
            {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "hidden", "redacted": True}],
             "tool_calls": [{"id": "t", "function": "Bash", "arguments": ARGS, "type": "function"}]},
            {**tool(tool_call_id="t"), "function": "Bash"}, DONE],
        "scores": {"includes": {"value": "C", "answer": "Done"}}, "metadata": {}, "events": [],
        "model_usage": {"m": {"input_tokens": 8, "output_tokens": 2, "total_tokens": 10, "total_cost": 0.125},
                        "n": {"input_tokens": 19, "output_tokens": 1, "total_tokens": 20, "total_cost": 0.125}},
        "started_at": "2026-01-01T00:00:00Z", "completed_at": "2026-01-01T00:01:00Z",
    }],
}  # fmt: skip


def mapped(number, *messages, answer):
    """A span as JavaScript's and Logfire's exporters write it, whose attributes are a map with lists."""
    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": number}
    sides = {"gen_ai.input.messages": [*messages], "gen_ai.output.messages": [answer]}
    return {"traceId": "a", "id": str(number), "startTimeUnixNano": f"176722560{number}000000000",
            "endTimeUnixNano": f"176722560{number}500000000",
            "attributes": {"gen_ai.operation.name": "chat", **sides, **usage}}  # fmt: skip


FORMS = {
    "OpenAI's chat completions": [
        (chat({"tool_calls": [function(TEXT, id="t")]}, tool(tool_call_id="t")), STEPS),
        # The answer beside the messages, or in both places.
        ({"messages": chat({"tool_calls": [function(TEXT, id="t")]}, tool(tool_call_id="t"))["messages"][:3],
          "choices": [{"message": DONE}]}, STEPS),
        (chat({"tool_calls": [function(TEXT, id="t")]}, tool(tool_call_id="t"), choices=[{"message": DONE}]), STEPS),
        ({"request": {"messages": [ASKED, {"role": "assistant", "tool_calls": [function(TEXT, id="t")]},
                                   tool(tool_call_id="t")]},
          "response": {"choices": [{"message": {**DONE, "refusal": None}, "finish_reason": "stop"}]}}, STEPS),
        # A call whose arguments are not JSON reads as at run time.
        (chat({"tool_calls": [function('{"at": ', id="t")], "content": "I look"}, tool("error", tool_call_id="t")),
         [("", "I look", "error"), STEPS[1]]),
        # Arguments as an object, encoded twice; calls without ids; parts that are null; reasoning beside the text.
        (chat({"tool_calls": [function(ARGS, id="t")]}, tool(tool_call_id="t")), STEPS),
        (chat({"tool_calls": [function(json.dumps(TEXT), id="t")]}, tool(tool_call_id="t")), STEPS),
        (chat({"tool_calls": [function(TEXT)]}, tool()), STEPS),
        (chat({"tool_calls": [function(TEXT, id="t")], "content": [{"type": "text", "text": None}]},
              tool([{"type": "text", "text": "a.py"}], tool_call_id="t")), STEPS),
        (chat({"tool_calls": [function(TEXT, id="t")], "reasoning_content": "Look first"}, tool(tool_call_id="t")),
         THOUGHT),
        (chat({"tool_calls": [function(TEXT, id="t")]}, tool(tool_call_id="t"))
         | {"choices": [{"message": {"role": "assistant", "content": None, "refusal": "No"}}]},
         [*STEPS, ("", "No", "")]),
    ],
    "OpenAI's functions": [
        (chat({"function_call": {"name": "Bash", "arguments": TEXT}}, {"role": "function", "name": "Bash",
                                                                     "content": "a.py"}), STEPS),
    ],
    "OpenAI's Responses": [
        ({"input": [INPUT, *ITEMS], "output": [FINAL]}, THOUGHT),
        ({"messages": [INPUT, *ITEMS, FINAL]}, THOUGHT),
        ({"request": {"input": [INPUT, *ITEMS]}, "response": {"output": [FINAL]}}, THOUGHT),
        ({"messages": [INPUT, *ITEMS, {"role": "assistant", "content": [{"type": "refusal", "refusal": "Done"}]}]},
         THOUGHT),
    ],
    "Anthropic's messages": [
        (anthropic(), STEPS),
        (anthropic({"type": "thinking", "thinking": "Look first", "signature": "x"}), THOUGHT),
        (anthropic({"type": "text", "text": "Look first"}, {"type": "redacted_thinking", "data": "x"},
                   result=[{"type": "text", "text": "a.py"}, {"type": "image", "source": {}}]), THOUGHT),
        ({"request": {"messages": anthropic()["messages"][:3]}, "response": anthropic()["messages"][3]}, STEPS),
    ],
    "LangChain's messages": [
        ({"messages": [{"type": "human", "content": "Fix the test"},
                       {"type": "ai", "content": "", "tool_calls": [{"name": "Bash", "args": ARGS, "id": "t"}]},
                       {"type": "tool", "content": "a.py", "tool_call_id": "t"}, {"type": "ai", "content": "Done"}]},
         STEPS),
    ],
    "GenAI spans": [
        ([span(1, genai(PROMPT, answer=CALLED)), span(2, genai(PROMPT, CALLED, ANSWERED, answer=SAID))], STEPS),
    ],
    "spans with a map of attributes": [
        ([mapped(1, PROMPT, answer=CALLED), mapped(2, PROMPT, CALLED, ANSWERED, answer=SAID)], STEPS),
        ([{"trace_id": "a", "start_timestamp": f"2026-01-01T00:00:0{n}Z", "attributes": each["attributes"]}
          for n, each in enumerate([mapped(1, PROMPT, answer=CALLED),
                                    mapped(2, PROMPT, CALLED, ANSWERED, answer=SAID)])], STEPS),
    ],
    "a span of OTLP by itself": [
        ([{"traceId": "a", "startTimeUnixNano": "1", "attributes": [
            {"key": name, "value": {"stringValue": value}}
            for name, value in genai(PROMPT, CALLED, ANSWERED, answer=SAID).items()]}], STEPS[1:]),
    ],
    "OpenInference spans": [
        ([span(1, inference(PHOENIX[0], answer=PHOENIX[1])), span(2, inference(*PHOENIX, answer=DONE))], STEPS),
        ([{"context.trace_id": "a", "start_time": "1", "span_kind": "LLM",
           **{f"attributes.llm.{side}_messages": [{"message": each} for each in said]
              for side, said in {"input": PHOENIX, "output": [DONE]}.items()}}], STEPS[1:]),
    ],
    "OpenLLMetry spans": [
        ([span(1, TRACELOOP | {f"gen_ai.completion.0.{name}": value for name, value in TRACELOOP_CALL.items()}),
          span(2, TRACELOOP | TRACELOOP_REST)], STEPS),
        ([span(1, {"llm.prompts.0.role": "user", "llm.prompts.0.content": "Fix the test",
                   "llm.completions.0.content": "Done"})], STEPS[1:]),
    ],
    "ATIF": [(ATIF, STEPS)],
    "ATIF in an envelope": [(ENVELOPE, STEPS)],
    "mini-swe-agent": [
        ({"trajectory_format": "mini-swe-agent-1", "instance_id": "a__b-1", "info": {"exit_status": "Submitted"},
          "messages": [{"role": "system", "content": "You work."}, ASKED, {"role": "assistant", "content": "ls"},
                       {"role": "user", "content": "a.py"}, DONE, {"role": "user", "content": "bye"}]},
         [("", "ls", "a.py"), ("", "Done", "bye")]),
        # Version 2 calls tools, by either interface, and notes why it stopped.
        ({"trajectory_format": "mini-swe-agent-1.1", "instance_id": "a__b-1", "messages": [
            ASKED, {"role": "assistant", "tool_calls": [function(TEXT, id="t")]}, tool(tool_call_id="t"), DONE,
            {"role": "exit", "content": "", "extra": {"exit_status": "Submitted"}}]}, STEPS),
        ({"trajectory_format": "mini-swe-agent-1.1", "instance_id": "a__b-1", "messages": [
            ASKED, {"object": "response", "output": ITEMS[:2], "extra": {}}, ITEMS[2],
            {"object": "response", "output": [FINAL]}]}, THOUGHT),
    ],
    "inspect_ai": [(INSPECT, STEPS)],
    "Claude Code": [(CLAUDE_CODE, THOUGHT)],
    "Codex": [(CODEX, THOUGHT)],
    "tau-bench": [
        ({"task_id": 0, "trial": 2, "reward": 0.0, "info": {"task": {}},
          "traj": [{"role": "system", "content": "Policy."},
                   *chat({"tool_calls": [function(TEXT, id="t")]}, tool(tool_call_id="t", name="Bash"))["messages"],
                   {"role": "user", "content": "Thanks"}]}, [STEPS[0], ("", "Done", "Thanks")]),
    ],
}  # fmt: skip
EXAMPLES = [
    pytest.param(*example, id=f"{name} {n}") for name, listed in FORMS.items() for n, example in enumerate(listed)
]


def log(folder, *records):
    path = folder / "logs.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.mark.parametrize(("example", "steps"), EXAMPLES)
def test_a_form_reads_as_the_same_run(tmp_path, example, steps):
    (run,) = read(log(tmp_path, *(example if isinstance(example, list) else [example])))
    assert not isinstance(run, Refused), run
    assert [(step.thought, step.action, step.observation) for step in run.trajectory.steps] == steps
    assert "Fix the test" in run.trajectory.task.instruction


def test_the_table_of_the_documentation_lists_every_form():
    page = (Path(__file__).parents[3] / "docs" / "importing.md").read_text()
    rows = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert [name for name in FORMS if name not in rows] == ["a span of OTLP by itself"]


@pytest.mark.parametrize(
    ("message", "part"),
    [
        ({"role": "assistant", "content": [{"type": "secret_part", "text": "x"}]}, "the unknown type secret_part"),
        ({"role": "assistant", "content": [{"type": "Secret", "text": "x"}]}, "the unknown type:"),
        ({"role": "assistant", "content": {"text": "x"}}, "content of a message is a dict"),
        ({"role": "assistant", "tool_calls": [function("[1]", id="t")]}, "arguments of a tool call are a list"),
        (tool(tool_call_id="gone"), "a tool answers a call that is not in the log"),
        ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "gone", "content": "x"}]},
         "a tool answers a call that is not in the log"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_cause(tmp_path, message, part):
    (refused,) = read(log(tmp_path, {"messages": [ASKED, message, DONE]}))
    assert isinstance(refused, Refused)
    assert part in refused.reason


def test_the_text_of_a_user_beside_a_tools_answer_is_kept(tmp_path):
    both = parts("user", *ANSWERED["parts"], {"type": "text", "content": "quickly"})
    (run,) = read(
        log(tmp_path, span(1, genai(PROMPT, answer=CALLED)), span(2, genai(PROMPT, CALLED, both, answer=SAID)))
    )
    assert run.trajectory.steps[0].observation == "a.py\nquickly"
    chatted = anthropic()
    chatted["messages"][2]["content"].append({"type": "text", "text": "quickly"})
    (run,) = read(log(tmp_path, chatted), Reading(turns="one"))
    assert run.trajectory.steps[0].observation == "a.py\nquickly"


def test_arguments_in_a_span_that_are_not_json_lose_the_call_and_not_the_trace(tmp_path):
    broken = parts("assistant", {"type": "tool_call", "id": "t", "name": "Bash", "arguments": '{"comm'})
    spans = span(1, genai(PROMPT, answer=broken)), span(2, genai(PROMPT, broken, ANSWERED, answer=SAID))
    (run,) = read(log(tmp_path, *spans))
    assert [(step.action, step.observation) for step in run.trajectory.steps] == [("", "a.py"), ("Done", "")]
    cut = span(1, genai(PROMPT, answer=SAID))
    cut["attributes"]["gen_ai.input.messages"] = cut["attributes"]["gen_ai.input.messages"][:-20]
    (refused,) = read(log(tmp_path, cut))
    assert "ATTRIBUTE_VALUE_LENGTH_LIMIT" in refused.reason


def test_a_benchmarks_record_names_its_task_trial_outcome_and_times(tmp_path):
    tau = FORMS["tau-bench"][0][0]
    swe = FORMS["mini-swe-agent"][0][0]
    for number, (record, task, thread, told) in enumerate([
        (ENVELOPE, "fix", "fix__1", ("fix__1", "10:00", "10:05")),
        (tau, "0", "0/2", ("2", "", "")),
        (swe, "a__b-1", "a__b-1", ("", "", "")),
    ]):  # fmt: skip
        out = tmp_path / str(number)
        report = import_logs(log(tmp_path, record), out)
        (stored,) = read_records(out)
        origin = json.loads(stored.settings)["imported"]
        assert (stored.trajectory.task.id, origin["thread"]) == (task, thread)
        assert (origin["trial"], origin["started"], origin["ended"]) == told
        assert stored.outcome_known is ("reward" in record)
        if "reward" in record:
            assert stored.trajectory.return_ == record["reward"]
        assert report.one_run_each is (record is swe)


def measured(run):
    origin = run.origin
    return (origin.started[:19], origin.ended[:19], origin.tokens, origin.cost)


ANSWERED_BY = {"response": {"created": 1767225600, "usage": {"total_tokens": 7}}}
STEP = {"source": "agent", "message": "Done"}
ASKED_STEP = {"source": "user", "message": "Fix the test"}


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (FORMS["spans with a map of attributes"][0][0], ("2026-01-01T00:00:01", "2026-01-01T00:00:02", 23, None)),
        ([span(1, inference(PHOENIX[0], answer=DONE) | {"llm.token_count.total": 5, "llm.cost.total": 0.5},
               end_time="2026-01-01T00:00:09Z")], ("2026-01-01T00:00:01", "2026-01-01T00:00:09", 5, 0.5)),
        ([span(1, genai(PROMPT, answer=SAID))], ("2026-01-01T00:00:01", "", None, None)),
        # Times of mini-swe-agent 1 are in the endpoint's answers, of 2 beside the messages.
        ({**FORMS["mini-swe-agent"][0][0], "info": {"model_stats": {"instance_cost": 0.5}}, "messages": [
            ASKED, {**DONE, "extra": ANSWERED_BY}, ASKED,
            {**DONE, "extra": {**ANSWERED_BY, "timestamp": 1767225660.5}}]},
         ("2026-01-01T00:00:00", "2026-01-01T00:01:00", 14, 0.5)),
        ({**FORMS["mini-swe-agent"][0][0], "messages": [ASKED, {**DONE, "extra": ANSWERED_BY},
                                                        {**DONE, "extra": {"response": {}}}]},
         ("2026-01-01T00:00:00", "", None, None)),
        (ATIF, ("2026-01-01T00:00:00", "2026-01-01T00:01:00", None, None)),
        ({"steps": [ATIF["steps"][0], *2 * [
            STEP | {"metrics": {"prompt_tokens": 5, "completion_tokens": 1, "cost_usd": 0.25}}]]},
         ("2026-01-01T00:00:00", "", 12, 0.5)),
        ({"steps": [ASKED_STEP, STEP | {"metrics": {"prompt_tokens": 5, "completion_tokens": 1}}, STEP]},
         ("", "", None, None)),
        ({"messages": [ASKED, DONE], "usage": {"total_tokens": 0}, "start_time": 1767225600000}, ("2026-01-01T00:00:00",
         "", 0, None)),
        ({"messages": [ASKED, DONE], "usage": {"total_tokens": float("nan")}, "started_at": float("inf")},
         ("", "", None, None)),
        ({"run_type": "chain", "id": "r", "inputs": {"messages": [ASKED]}, "outputs": {"messages": [ASKED, DONE]},
          "start_time": "2026-01-01T00:00:00", "end_time": "2026-01-01T00:00:09", "total_tokens": 9,
          "total_cost": 0.5}, ("2026-01-01T00:00:00", "2026-01-01T00:00:09", 9, 0.5)),
    ],
)  # fmt: skip
def test_times_tokens_and_cost_are_kept_where_the_log_has_them(tmp_path, example, expected):
    (run,) = read(log(tmp_path, *(example if isinstance(example, list) else [example])))
    assert measured(run) == expected


# --- a conversation, or its turns ----------------------------------------------------------------------------


def conversation(n_turns, *, tools=False, **fields):
    turn = [ASKED, *(anthropic()["messages"][1:3] if tools else ()), DONE]
    return {"messages": turn * n_turns, **fields}


def test_conversations_of_a_world_with_one_outcome_are_one_run_each(tmp_path):
    source = log(tmp_path, *(conversation(9, id=str(n), solved=n % 2) for n in range(5)))
    report = import_logs(source, tmp_path / "data", outcomes=Outcomes(reward="solved"))
    assert (report.trajectories, report.steps, report.one_run_each) == (5, 45, True)
    assert "--turns each" in report.notes()[0]


@pytest.mark.parametrize(
    ("record", "rule"),
    [
        (conversation(9), Outcomes(reward="solved")),
        (conversation(9, solved=1), Outcomes()),
        (conversation(9, tools=True, solved=1), Outcomes(reward="solved")),
    ],
)
def test_nothing_is_written_where_it_is_unclear_what_a_run_is(tmp_path, record, rule):
    source, out = log(tmp_path, record), tmp_path / "data"
    with pytest.raises(ConfigurationError, match=r"9 turns each.*--turns each.*--turns one"):
        import_logs(source, out, outcomes=rule)
    assert not out.exists()
    assert import_logs(source, out, reading=Reading(turns="each")).trajectories == 9
    assert import_logs(source, tmp_path / "one", reading=Reading(turns="one")).trajectories == 1


def test_short_conversations_are_taken_turn_by_turn(tmp_path):
    source = log(tmp_path, *(conversation(3, id=str(n), solved=1) for n in range(3)))
    assert import_logs(source, tmp_path / "data", outcomes=Outcomes(reward="solved")).trajectories == 9


def test_a_source_without_a_run_is_an_error(command, tmp_path):
    chain = log(tmp_path, span(1, {"openinference.span.kind": "CHAIN"}))
    code, _, error = command("import", chain, "--out", tmp_path / "a")
    assert code != 0
    assert "no run was read" in error
    code, told, error = command("import", log(tmp_path, {"messages": "x"}), "--out", tmp_path / "b")
    assert code != 0
    assert "Refused: 1 x expected a list of messages" in " ".join(told.split())
    assert "refused" in error


def test_a_line_that_does_not_fit_into_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_files, "LONGEST", 200)
    monkeypatch.setattr(json_files, "_AT_ONCE", 100)
    monkeypatch.setattr(json_files, "_CHUNK", 64)
    long = conversation(9)
    for text in (
        f"{json.dumps(conversation(1))}\n{json.dumps(long)}\n{json.dumps(conversation(1))}\n",
        f"{json.dumps(conversation(1))}\n{json.dumps(long, indent=1)}\n",
        json.dumps([conversation(1), long]),
    ):
        path = tmp_path / "logs.jsonl"
        path.write_text(text)
        runs = list(read(path, Reading(kind="chat")))
        (refused, *_) = [run for run in runs if isinstance(run, Refused)]
        assert "longer than 128 MiB" in refused.reason
        assert len(runs) - sum(isinstance(run, Refused) for run in runs) >= 1


# --- the results of SWE-bench --------------------------------------------------------------------------------

SWE = FORMS["mini-swe-agent"][0][0]
COMPLETE = [
    {"total": 2, "instances": [{"instance_id": "a", "resolved": True}, {"instance_id": "b", "resolved": False}]},
    [{"instance_id": "a", "resolved": True}, {"instance_id": "b", "resolved": False}],
    {"resolved_instances": 1, "completed_ids": ["a", "b"], "resolved_ids": ["a"], "unresolved_ids": ["b"]},
    {"a": {"patch_is_None": False, "resolved": True}, "b": {"patch_is_None": False, "resolved": False}},
    {"a": True, "b": False},
]
RESOLVED = [["a"], {"resolved": ["a"], "no_generation": [], "no_logs": []}, {"no_logs": ["b"], "resolved": ["a"]}]


@pytest.mark.parametrize("results", [*COMPLETE, *RESOLVED])
def test_the_results_of_swe_bench_are_outcomes_and_no_logs(tmp_path, results):
    runs, out = tmp_path / "runs", tmp_path / "data"
    runs.mkdir()
    for name in "abc":
        (runs / f"{name}.traj.json").write_text(json.dumps(SWE | {"instance_id": name}))
    table = runs / "results.json"
    table.write_text(json.dumps(results, indent=2))
    (runs / "preds.json").write_text(json.dumps({"a": {"model_name_or_path": "m", "instance_id": "a"}}))
    report = import_logs(runs, out, outcomes=Outcomes(table=table))
    returns = {each.trajectory.task.id: each.trajectory.return_ for each in read_records(out)}
    rest = 0 if results in RESOLVED else pytest.approx(float("nan"), nan_ok=True)
    assert returns == {"a": 1, "b": 0, "c": rest}
    assert report.refused == (results == COMPLETE[-1])  # which may as well be a record


def test_a_list_of_what_was_resolved_changes_no_outcome_that_is_known(tmp_path):
    out, table = tmp_path / "data", tmp_path / "resolved.json"
    import_logs(log(tmp_path, conversation(1, id="mine", score=0.5)), out, outcomes=Outcomes(reward="score"))
    import_logs(log(tmp_path, conversation(1, id="a"), conversation(1, id="b")), out)
    table.write_text('["a"]')
    assert import_logs(None, out, outcomes=Outcomes(table=table)).outcomes_updated == 2
    assert sorted(each.trajectory.return_ for each in read_records(out)) == [0, 0.5, 1]


@pytest.mark.parametrize(
    "content", ["", "3", "[1]", '{"total": 1}', '{"instances": [{}]}', '{"resolved": [1]}', "[" * 9999]
)
def test_other_json_is_no_table_of_outcomes(tmp_path, content):
    table = tmp_path / "a.json"
    table.write_text(content)
    with pytest.raises(CheckpointError, match="expected a CSV file, or JSON with"):
        import_logs(log(tmp_path, SWE), tmp_path / "data", outcomes=Outcomes(table=table))
    assert not (tmp_path / "data").exists()
