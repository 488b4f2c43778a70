"""OpenTelemetry spans of model calls, in both conventions and both forms of JSON."""

import json
import random

import pytest
from langchain_core.callbacks import BaseCallbackHandler

from amc_agents.operations.importing import Outcomes, Refused, import_logs, read
from amc_agents.training.dataset import read_records
from tests.operations.importing.shop import seen_by_a_run, shop_agent, texts


class ModelCalls(BaseCallbackHandler):
    """Records what the model is given and what it answers, as an instrumentation does."""

    def __init__(self):
        self.calls = []

    def on_chat_model_start(self, serialized, messages, **_):
        self.calls.append([list(messages[0]), None])

    def on_llm_end(self, response, **_):
        self.calls[-1][1] = response.generations[0][0].message


def genai_message(message):
    role = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
    if message.type == "tool":
        return {
            "role": role,
            "parts": [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.text}],
        }
    parts = [{"type": "text", "content": message.text}] if message.text else []
    for call in getattr(message, "tool_calls", []):
        parts.append({"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["args"]})
    return {"role": role, "parts": parts}


def genai(given, answer):
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps([genai_message(message) for message in given if message.type != "system"]),
        "gen_ai.output.messages": json.dumps([genai_message(answer) | {"finish_reason": "stop"}]),
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": given[0].text}]),
    }


def openinference(given, answer):
    attributes = {"openinference.span.kind": "LLM"}
    for side, messages in (("input", given), ("output", [answer])):
        for number, message in enumerate(messages):
            name = f"llm.{side}_messages.{number}.message"
            attributes[f"{name}.role"] = {"human": "user", "ai": "assistant"}.get(message.type, message.type)
            if message.text:
                attributes[f"{name}.content"] = message.text
            for place, call in enumerate(getattr(message, "tool_calls", [])):
                attributes[f"{name}.tool_calls.{place}.tool_call.id"] = call["id"]
                attributes[f"{name}.tool_calls.{place}.tool_call.function.name"] = call["name"]
                attributes[f"{name}.tool_calls.{place}.tool_call.function.arguments"] = json.dumps(call["args"])
            if message.type == "tool":
                attributes[f"{name}.tool_call_id"] = message.tool_call_id
    return attributes


def spans_of(trace, messages, convention, **attributes):
    """(trace, start, attributes) of every span of a call of the agent: the call itself, and its model calls."""
    handler = ModelCalls()
    shop_agent().invoke({"messages": list(messages)}, {"callbacks": [handler]})
    calls = [(trace, number + 1, convention(*call)) for number, call in enumerate(handler.calls)]
    return [(trace, 0, {"gen_ai.operation.name": "invoke_agent", **attributes}), *calls]


def otlp(spans):
    def value(content):
        kind = {bool: "boolValue", int: "intValue", float: "doubleValue"}.get(type(content), "stringValue")
        return {kind: str(content) if kind == "intValue" else content}

    listed = [
        {
            "traceId": trace,
            "startTimeUnixNano": str(10**18 + start),
            "attributes": [{"key": key, "value": value(content)} for key, content in attributes.items()],
        }
        for trace, start, attributes in spans
    ]
    return [{"resourceSpans": [{"scopeSpans": [{"spans": listed[at : at + 3]}]}]} for at in range(0, len(listed), 3)]


def console(spans):
    return [
        {
            "name": "span",
            "context": {"trace_id": trace},
            "start_time": f"2026-01-01T00:00:0{start}Z",
            "attributes": attributes,
        }
        for trace, start, attributes in spans
    ]


def log(path, values):
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@pytest.mark.parametrize("form", [otlp, console])
@pytest.mark.parametrize("convention", [genai, openinference])
def test_every_trace_reads_as_the_run_that_amc_would_have_seen(tmp_path, convention, form):
    history = shop_agent().invoke({"messages": [("user", "chair")]})["messages"]
    given = {"a": [("user", "desk lamp")], "b": [*history, ("user", "hello")]}
    spans = [span for trace, messages in given.items() for span in spans_of(trace, messages, convention)]
    random.Random(3).shuffle(spans)  # exporters write spans as they end, and traces side by side
    runs = list(read(log(tmp_path / "traces.jsonl", form(spans))))
    assert {run.origin.run_id: texts(run.trajectory) for run in runs} == {
        trace: texts(seen_by_a_run(messages)) for trace, messages in given.items()
    }
    assert [(run.turn, run.over, run.cut_off) for run in runs] == [(0, True, False), (1, True, False)]


def test_a_structured_attribute_of_otlp_is_read(tmp_path):
    (trace, start, attributes), *_ = spans_of("a", [("user", "hello")], genai)[1:]
    (line,) = otlp([(trace, start, attributes)])
    text = {
        "kvlistValue": {
            "values": [
                {"key": "type", "value": {"stringValue": "text"}},
                {"key": "content", "value": {"stringValue": "hello"}},
            ]
        }
    }
    message = [
        {"key": "role", "value": {"stringValue": "user"}},
        {"key": "parts", "value": {"arrayValue": {"values": [text]}}},
    ]
    logged = line["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"]
    next(each for each in logged if each["key"] == "gen_ai.input.messages")["value"] = {
        "arrayValue": {"values": [{"kvlistValue": {"values": message}}]}
    }
    (run,) = read(log(tmp_path / "traces.jsonl", [line]))
    assert texts(run.trajectory) == texts(seen_by_a_run([("user", "hello")]))


def test_outcomes_are_attributes_or_evaluations(tmp_path):
    scored = {"app.solved": True, "gen_ai.conversation.id": "c7"}
    spans = spans_of("a", [("user", "hello")], genai, **scored) + spans_of("b", [("user", "chair")], genai)
    evaluation = {"gen_ai.evaluation.name": "tone", "gen_ai.evaluation.score.value": 0.25}
    source = log(tmp_path / "traces.jsonl", otlp([*spans, ("b", 9, evaluation)]))
    assert {run.origin.thread for run in read(source)} == {"c7", "b"}
    for name, rule, expected in (
        ("by-attribute", Outcomes(reward="app.solved"), [1.0]),
        ("by-evaluation", Outcomes(feedback="tone"), [0.25]),
    ):
        import_logs(source, tmp_path / name, outcomes=rule)
        records = read_records(tmp_path / name)
        assert len(records) == 2
        assert [record.trajectory.return_ for record in records if record.outcome_known] == expected


def test_traces_that_cannot_be_read_are_refused(tmp_path):
    lamp = spans_of("a", [("user", "desk lamp")], genai)
    shortened = [*lamp[:2], (*lamp[2][:2], lamp[2][2] | {"gen_ai.input.messages": lamp[1][2]["gen_ai.input.messages"]})]
    silent = [("b", 1, {"gen_ai.operation.name": "chat"})]
    strange = [("c", 1, {"gen_ai.operation.name": "chat", "gen_ai.input.messages": '[{"role": "user"}]'})]
    failed = [("d", 1, {name: value for name, value in lamp[1][2].items() if "output" not in name})]
    values = [*console([*shortened, *silent, *strange, *failed]), {"context": {}}]
    refused = list(read(log(tmp_path / "traces.jsonl", values)))
    assert all(isinstance(record, Refused) for record in refused)
    parts = ("not a span", "does not go on", "without its messages", "unknown form", "no message of the agent")
    for record, part in zip(refused, parts, strict=True):
        assert part in record.reason


def test_a_trace_that_waits_for_a_tool_is_not_over(tmp_path):
    (run,) = read(log(tmp_path / "traces.jsonl", console(spans_of("a", [("user", "desk lamp")], genai)[:2])))
    assert (run.over, run.cut_off) == (False, True)
