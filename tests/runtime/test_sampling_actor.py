"""Samples of a chat model: one request or many, log-likelihoods, copies, and models that do not fit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI

from amc_agents import actor_critic_model
from amc_agents.errors import ConfigurationError, DecisionError
from amc_agents.runtime.inner_calls import ChatActor
from amc_agents.testing.scripted import ScriptedChatModel
from tests.lac.lac_agents import Prefers, Watching, ask, both_ways, in_turn
from tests.scripted_http import scripted_server


def completions(bodies, *, n_given=None):
    """A chat completions server whose candidates differ; `bodies` collects the request bodies."""

    def answer(body):
        bodies.append(body)
        n = body.get("n") or 1
        n = n if n_given is None else min(n, n_given)
        words = ["cold"] if body.get("temperature") == 0 else [f"word{len(bodies) if n == 1 else i}" for i in range(n)]
        choices = [
            {"index": i, "finish_reason": "stop", "message": {"role": "assistant", "content": f"Action: {word}"},
             "logprobs": {"content": [entry(f"Action: {word}", -1.0 - i), entry("<end>", -0.5)]}
             if body.get("logprobs") else None}
            for i, word in enumerate(words)
        ]  # fmt: skip
        usage = {"prompt_tokens": 10, "completion_tokens": 3 * n, "total_tokens": 10 + 3 * n}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "small", "choices": choices,
                     "usage": usage}  # fmt: skip

    return scripted_server({"POST /v1/chat/completions": answer})


def entry(token, logprob):
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}


def openai(server, **settings):
    return ChatOpenAI(model="small", base_url=f"{server.url}/v1", api_key="none", max_retries=0, **settings)


@both_ways
def test_a_model_that_supports_n_gets_a_single_request(sync):
    bodies = []
    with completions(bodies) as server:
        model = actor_critic_model(openai(server, streaming=True), Prefers(word3=9.0), k=5)
        answer = ask(model, sync=sync)
    assert answer.text == "Action: word3"
    assert [body["n"] for body in bodies] == [5]
    assert not bodies[0].get("stream")
    assert answer.response_metadata["lac"]["usage"]["policy"]["calls"] == 1


def test_a_server_that_ignores_n_is_asked_again():
    bodies = []
    with completions(bodies, n_given=1) as server:
        answer = ask(actor_critic_model(openai(server), k=3))
    assert [body.get("n") for body in bodies] == [3, None, None]
    assert answer.response_metadata["lac"]["candidates"] == 3


def test_the_responses_api_is_never_used_for_candidates():
    bodies = []
    with completions(bodies) as server:
        chosen = ChatActor(openai(server, use_responses_api=True), [HumanMessage("x")])
        assert not chosen._takes_n
        assert not ChatActor(openai(server, reasoning={"effort": "low"}), [HumanMessage("x")])._takes_n
        assert not ChatActor(openai(server), [], tools=[{"type": "web_search"}])._takes_n
        left_open: Any = ChatActor(openai(server), [HumanMessage("x")])
        assert left_open._model.use_responses_api is False


def test_the_greedy_turn_is_sampled_concurrently():
    bodies = []
    with completions(bodies) as server:
        answer = ask(actor_critic_model(openai(server, temperature=0.8), Prefers(cold=2.0), k=3, greedy=True))
    assert sorted((body["temperature"], body.get("n")) for body in bodies) == [(0, None), (0.8, 3)]
    assert answer.text == "Action: cold"
    assert answer.response_metadata["lac"]["round_trips"] == 2, "candidates with the greedy one, and the critic"


def test_a_model_without_a_temperature_cannot_be_greedy():
    with pytest.raises(ConfigurationError, match="no setting `temperature`"):
        actor_critic_model(in_turn("go"), greedy=True)


def test_log_likelihoods_are_those_of_the_answer_with_its_end():
    bodies = []
    with completions(bodies) as server:
        samples = asyncio.run(ChatActor(openai(server), [HumanMessage("x")], log_likelihoods=True).sample(3))
        assert [one.log_likelihood for one in samples] == [-1.5, -2.5, -3.5]
        assert bodies[0]["logprobs"] is True
        answer = ask(actor_critic_model(openai(server), k=3, prior="likelihood"))
        assert answer.text == "Action: word0"
        hot = ChatActor(openai(server, temperature=0.7), [HumanMessage("x")], log_likelihoods=True)
        assert [one.log_likelihood for one in asyncio.run(hot.sample(2))] == [None, None]


def test_a_text_without_its_end_token_has_no_likelihood():
    message = AIMessage("go", response_metadata={"finish_reason": "stop", "logprobs": {"content": [entry("go", -1.0)]}})
    model = ChatOpenAI(model="small", api_key="none")
    actor = ChatActor(model, [], log_likelihoods=True)
    assert actor._sample(message).log_likelihood is None
    message.response_metadata["finish_reason"] = "length"
    assert actor._sample(message).log_likelihood == -1.0


def test_a_token_without_a_reported_probability_leaves_the_text_without_a_likelihood():
    content = [entry("Action: go", -1.0), entry("<end>", -9999.0)]
    message = AIMessage("Action: go", response_metadata={"finish_reason": "stop", "logprobs": {"content": content}})
    actor = ChatActor(ChatOpenAI(model="small", api_key="none"), [], log_likelihoods=True)
    assert actor._sample(message).log_likelihood is None


def test_copies_made_by_a_cache_or_a_seed_are_noted(caplog):
    class Seeded(ScriptedChatModel):
        seed: int | None = None
        temperature: float | None = None

    same = lambda messages: "go"  # noqa: E731
    for settings, cause in (({"seed": 3}, "a fixed seed (3)"), ({"temperature": 0}, "temperature 0")):
        notes = ask(actor_critic_model(Seeded(respond=same, **settings), k=3)).response_metadata["lac"]["notes"]
        assert notes == [f"all 3 samples are the same, and the model has {cause}"]
    set_llm_cache(InMemoryCache())
    try:
        notes = ask(actor_critic_model(Seeded(respond=same), k=3)).response_metadata["lac"]["notes"]
    finally:
        set_llm_cache(None)
    assert notes == ["all 3 samples are the same, and the model has a cache"]
    assert caplog.text.count("the decision has a single candidate") == 3
    agreed = ask(actor_critic_model(Seeded(respond=same), k=3)).response_metadata["lac"]["notes"]
    assert agreed == [], "a model that is sure of itself is no mistake"


async def test_requests_of_a_bare_actor_are_not_streamed_either():
    watching = Watching()
    await ChatActor(in_turn("go"), [HumanMessage("?")], callbacks=[watching]).sample(2)
    assert [tags for _, tags in watching.runs.values()] == [["nostream"]] * 2


def test_wrappers_of_a_chat_model_apply_to_the_returned_model():
    for built in (in_turn("go").with_retry(), in_turn("go").with_config(tags=["x"]), "gpt"):
        with pytest.raises(ConfigurationError, match="expected a chat model"):
            actor_critic_model(built)
    assert ask(actor_critic_model(in_turn("go"), k=2).with_retry()).text == "go"


def test_empty_answers_are_an_error_and_a_malformed_call_is_an_action():
    with pytest.raises(DecisionError, match="none of 2 samples"):
        ask(actor_critic_model(in_turn(""), k=2))
    broken = AIMessage("", invalid_tool_calls=[{"name": "go", "args": "{", "id": "1", "error": "no JSON"}])
    assert ask(actor_critic_model(in_turn(broken), k=2)).invalid_tool_calls[0]["args"] == "{"
