"""LAC, PNLC and best-of-n as models."""

from __future__ import annotations

import asyncio
import threading

import pytest
from gateway_client import ask, body_of, error_of, events_of, plain_config
from upstream_server import USAGE, answer, call, message, texts

CRITIC_TOKENS = 7
"""Per trajectory, by `critics_for_tests.long`."""


def test_lac_samples_k_answers_and_returns_the_critics_choice(http, upstream):
    upstream.reply = texts("aa", "a" * 60, "aa")
    told = ask(http, model="lac/small", temperature=0.5, top_k=4, user="u").json()
    assert told["choices"] == [{"index": 0, "message": message("a" * 60), "finish_reason": "stop"}]
    (asked,) = upstream.asked
    assert (asked["n"], asked["temperature"], asked["top_k"], asked["user"]) == (3, 0.5, 4, "u")
    (decision,) = told["amc"]["decisions"]
    assert (decision["critic"], decision["samples"], decision["candidates"]) == ("long", 3, 2)
    assert (told["model"], told["object"]) == ("lac/small", "chat.completion")


def test_a_request_chooses_among_the_critics_of_the_configuration(http, upstream):
    upstream.reply = texts("aa", "a" * 60, "aa")
    told = ask(http, model="lac/small", amc={"critic": "short"}).json()
    assert told["choices"][0]["message"]["content"] == "aa"
    refused = ask(http, model="lac/small", amc={"critic": "critics_for_tests:short"})
    assert error_of(refused) == (400, "invalid_request_error", "critic_not_found", "amc.critic")
    assert error_of(ask(http, model="best-of-n/small", amc={"critic": "broken"}))[2] == "critic_not_found"
    assert error_of(ask(http, amc={"critic": "short"}))[2] == "unsupported_parameter"
    assert error_of(ask(http, model="lac/small", amc={"k": 100})) == (400, "invalid_request_error", None, "amc")


def test_usage_is_the_sum_over_policy_and_critic(http, upstream):
    upstream.reply = texts("a", "aa", "aaa")
    told = ask(http, model="lac/small").json()
    read = USAGE["prompt_tokens"] + 3 * CRITIC_TOKENS
    assert told["usage"]["prompt_tokens"] == read
    assert told["usage"]["completion_tokens"] == USAGE["completion_tokens"]
    assert told["usage"]["total_tokens"] == read + USAGE["completion_tokens"]
    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert told["amc"]["usage"] == {
        "policy": {"calls": 1, "input_tokens": 10, "output_tokens": 3, "cached_tokens": 4},
        "critic": {"calls": 1, "input_tokens": 21, "output_tokens": 0, "cached_tokens": 0},
    }


def test_missing_usage_is_said(http, upstream):
    upstream.reply = lambda body: answer(message("a"), message("b"), message("c"), usage=None)
    told = ask(http, model="lac/small").json()
    assert told["amc"]["usage"]["policy"]["calls_without_usage"] == 1


def test_best_of_n_is_the_critic_alone(http, upstream):
    # The vote of the policy is for "a".
    upstream.reply = texts("a", "a", "aa")
    assert ask(http, model="best-of-n/small").json()["choices"][0]["message"]["content"] == "aa"


def test_n_makes_independent_decisions(http, upstream):
    upstream.reply = lambda body: answer(*(message("x" * (body["seed"] + i)) for i in range(body["n"])))
    told = ask(http, model="lac/small", n=2, seed=5).json()
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    assert sorted(body["seed"] for body in upstream.asked) == [5, 6]
    # The longest of x5 x6 x7, and of x6 x7 x8.
    assert sorted(len(choice["message"]["content"]) for choice in told["choices"]) == [7, 8]
    assert told["usage"]["completion_tokens"] == 2 * USAGE["completion_tokens"]
    assert len(told["amc"]["decisions"]) == 2


def test_tool_calls_are_candidates_and_come_back_as_sampled(http, upstream):
    calls = [call("look", '{"at":  "a"}', "c1"), call("look", '{"at":"' + "b" * 50 + '"}', "c2")]
    upstream.reply = lambda body: answer(*(message(None, tool_calls=[it]) for it in [calls[0], calls[1], calls[0]]))
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    told = ask(http, model="lac/small", tools=tools, tool_choice="required").json()
    choice = told["choices"][0]
    assert choice["message"] == message(None, tool_calls=[calls[1]])
    assert choice["finish_reason"] == "tool_calls"
    assert (upstream.asked[0]["tools"], upstream.asked[0]["tool_choice"]) == (tools, "required")


def test_log_probabilities_are_those_of_the_choice(http, upstream):
    def reply(body):
        told = answer(message("a"), message("aa"), message("aaa"))
        for choice in told["choices"]:
            choice["logprobs"] = {"content": [{"token": choice["message"]["content"], "logprob": -1.0}]}
        return told

    upstream.reply = reply
    told = ask(http, model="best-of-n/small", logprobs=True, top_logprobs=2).json()
    assert told["choices"][0]["logprobs"]["content"][0]["token"] == "aaa"
    assert (upstream.asked[0]["logprobs"], upstream.asked[0]["top_logprobs"]) == (True, 2)
    refused = ask(http, model="pnlc/small", logprobs=True)
    assert error_of(refused) == (400, "invalid_request_error", "unsupported_parameter", "logprobs")


@pytest.mark.parametrize("model", ["lac/small", "pnlc/small"])
def test_parameters_without_a_meaning_for_a_decision_are_refused(http, model):
    assert error_of(ask(http, model=model, functions=[]))[2:] == ("unsupported_parameter", "functions")
    assert error_of(ask(http, model=model, modalities=["text", "audio"]))[3] == "modalities"


def test_equal_samples_are_refused_unless_the_configuration_sets_a_temperature(http, upstream, start):
    for model in ("lac/small", "best-of-n/small"):
        assert error_of(ask(http, model=model, temperature=0))[2:] == ("unsupported_parameter", "temperature")
    assert ask(http, model="pnlc/small", temperature=0).status_code == 200
    config = plain_config(upstream.url)
    config["lac"]["temperature"] = 0.7
    _, http = start(config)
    assert ask(http, model="lac/small", temperature=0).status_code == 200
    assert [body["temperature"] for body in upstream.asked] == [0, 0, 0.7, 0.7, 0.7]


def test_the_conversation_goes_upstream_as_it_came(http, upstream):
    conversation = [
        {"role": "developer", "content": "Be brief.", "name": "boss"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call("f", "{not json")], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "call_1", "content": "bad arguments"},
    ]
    ask(http, model="lac/small", messages=conversation)
    assert upstream.asked[0]["messages"] == conversation


def test_a_decision_streams_as_chunks(http, upstream):
    upstream.reply = lambda body: answer(*(message("t" * i, tool_calls=[call("f", "{}")]) for i in (1, 2, 3)))
    *events, last, done = events_of(ask(http, model="lac/small", stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    delta = events[0]["choices"][0]["delta"]
    assert (delta["role"], delta["tool_calls"][0]["index"]) == ("assistant", 0)
    assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert all(event["usage"] is None for event in events)
    assert last["usage"]["completion_tokens"] == USAGE["completion_tokens"]
    assert last["amc"]["decisions"][0]["critic"] == "long"
    *_, last, _ = events_of(ask(http, model="lac/small", stream=True))
    assert "usage" not in last
    assert last["amc"]["decisions"][0]["critic"] == "long"


def test_pnlc_criticises_a_thought_and_returns_the_better_turn(http, upstream):
    turns = iter(
        [
            message("Thought: first\nAction: go"),
            message("Diagnosis: Hasty.\nDecision: REFINE\nThought: second thoughts"),
            message("Thought: second thoughts\nAction: stay"),
        ]
    )
    upstream.reply = lambda body: answer(next(turns))
    told = ask(http, model="pnlc/small").json()
    assert len(upstream.asked) == 3
    assert told["choices"][0]["message"]["content"] == "Thought: second thoughts\nAction: stay"
    assert told["usage"]["completion_tokens"] == 3 * USAGE["completion_tokens"]
    assert told["amc"]["usage"]["critic"]["calls"] == 1


def test_pnlc_adds_its_thought_to_a_turn_without_any(http, upstream):
    turns = iter(
        [
            message("first", tool_calls=[call("go", "{}")]),
            message("Diagnosis: Hasty.\nDecision: REFINE\nThought: second thoughts"),
            message(None, tool_calls=[call("stay", "{}")], extension=1),
        ]
    )
    upstream.reply = lambda body: answer(next(turns))
    told = ask(http, model="pnlc/small").json()
    expected = message("second thoughts", tool_calls=[call("stay", "{}")], extension=1)
    assert told["choices"][0]["message"] == expected


def test_reflections_are_added_to_the_conversation(upstream, start):
    config = plain_config(upstream.url)
    config["lac"]["reflect"] = True
    _, http = start(config)
    upstream.reply = lambda body: answer(*[message("This step is GOOD: it is open.")] * (body.get("n") or 1))
    steps = [{"role": "assistant", "content": "open"}, {"role": "user", "content": "It is open.", "name": "world"}]
    assert ask(http, model="lac/small", messages=[{"role": "user", "content": "task"}, *steps]).status_code == 200
    _, decision = upstream.asked
    *before, newest = decision["messages"]
    assert before == [{"role": "user", "content": "task"}, steps[0]]
    assert (newest["name"], newest["content"].splitlines()[0]) == ("world", "It is open.")
    assert "Reflection:" in newest["content"]


def test_a_critic_that_fails_is_a_502_without_its_words(http, upstream, caplog):
    told = ask(http, model="lac/small", amc={"critic": "broken"})
    assert error_of(told) == (502, "server_error", "critic_failed", None)
    assert "10.0.0.1" not in told.text
    assert "10.0.0.1" in caplog.text


def test_a_critic_that_fails_may_leave_the_decision_to_the_policy(upstream, start):
    config = plain_config(upstream.url)
    config["lac"] |= {"critics": ["broken"], "on_critic_error": "uniform"}
    _, http = start(config)
    upstream.reply = texts("a", "aa", "aa")
    told = ask(http, model="lac/small")
    assert told.json()["choices"][0]["message"]["content"] == "aa"
    assert "the critic failed and the prior decided alone" in told.json()["amc"]["decisions"][0]["notes"]
    assert "10.0.0.1" not in told.text


def test_a_stream_is_kept_alive_while_it_waits_for_a_decision(upstream, start):
    _, http = start(plain_config(upstream.url, server={"keep_alive_s": 0.05}))
    go = threading.Event()

    async def slow(body):
        await asyncio.to_thread(go.wait, 30)
        return answer(message("a"), message("a"), message("a"))

    upstream.reply = slow
    body = body_of(model="lac/small", stream=True)
    with http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()
        assert next(lines) == ": deciding"
        go.set()
        rest = [line for line in lines if line.startswith("data: ")]
    assert rest[-1] == "data: [DONE]"
    assert '"content":"a"' in rest[0]


def test_answers_without_a_text_are_an_error_that_says_so(http, upstream):
    upstream.reply = lambda body: answer(message(""), message(None), message(""))
    assert error_of(ask(http, model="lac/small")) == (502, "server_error", "no_decision", None)
