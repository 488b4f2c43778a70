"""Critics based on LangChain's chat models and embeddings, over real sockets, in several event loops."""

from __future__ import annotations

import asyncio
import math
import threading
import traceback
from dataclasses import replace

import numpy as np
import pytest
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from amc_agents.concurrency.background import run_in_background
from amc_agents.critics.asking import usage_of
from amc_agents.critics.goal.critic import ChatSummary
from amc_agents.critics.goal.embeddings import LangChainEmbeddings
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.verdict.critic import VerdictCritic
from amc_agents.critics.verdict.top_k import TopKReader
from amc_agents.errors import CriticError
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Usage
from tests.critics.server.scripted_server import HANG, Reply, ScriptedServer

KEY = "sk-CANARY-0123456789"
ASKED = [Trajectory(Task("t", "Climb."), (Step("climb", f"rung {n}"),)) for n in range(3)]
TOP = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in (("GOOD", 0.6), ("BAD", 0.2))]


def openai(request):
    """Answer as OpenAI's two endpoints do."""
    if request.path == "/v1/embeddings":
        data = [{"object": "embedding", "index": n, "embedding": [1.0, float(n)]} for n in range(3)]
        return Reply(body={"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 3}})
    reply = {"role": "assistant", "content": "Score: 0.75"}
    logprobs = {"content": [{"token": "GOOD", "logprob": TOP[0]["logprob"], "bytes": None, "top_logprobs": TOP}]}
    choice = {"index": 0, "finish_reason": "stop", "message": reply, "logprobs": logprobs}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return Reply(body=whole)


@pytest.fixture
def server():
    """A server on the background loop, so that a test may run and close other loops."""
    scripted = ScriptedServer(openai)
    run_in_background(scripted.start(), n_workers=1)
    yield scripted
    run_in_background(scripted.stop(), n_workers=1)


def chat(server):
    return ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def judge(server, **patience):
    critic = JudgeCritic(chat(server), **patience)
    return critic.values, [0.75] * 3


def verdict(server, **patience):
    critic = VerdictCritic(TopKReader(chat(server), **patience))
    return critic.values, [0.75] * 3


def summary(server, **patience):
    described = ChatSummary(chat(server), **patience)

    async def ask(states):
        return (await described.describe(states)).states

    return ask, ["Score: 0.75"] * 3


def embeddings(server, **patience):
    model = OpenAIEmbeddings(
        model="m", base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, check_embedding_ctx_length=False
    )

    async def ask(states):
        return (
            await LangChainEmbeddings(model, **patience).embed([state.steps[0].observation for state in states])
        ).vectors

    return ask, [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]


KINDS = pytest.mark.parametrize("make", [judge, verdict, summary, embeddings])


@KINDS
def test_it_works_in_consecutive_event_loops(server, make):
    ask, expected = make(server)
    for _ in range(3):
        assert np.array_equal(asyncio.run(ask(ASKED)), expected) or np.allclose(asyncio.run(ask(ASKED)), expected)


@KINDS
def test_it_does_not_interfere_with_the_policys_client(server, make):
    """Clients of a provider share their connections, and those of an async client belong to an event loop."""
    ask, _ = make(server)
    policy = chat(server)

    async def run():
        for _ in range(3):
            assert (await policy.ainvoke("Go on.")).text == "Score: 0.75"
            await ask(ASKED)
        await policy.root_async_client.close()

    asyncio.run(asyncio.wait_for(run(), 20))


@KINDS
def test_its_failure_is_a_critic_error(server, make):
    server.respond = lambda request: Reply(status=400, body={"error": {"message": "no credit left"}})
    ask, _ = make(server)
    with pytest.raises(CriticError, match="no credit left"):
        asyncio.run(ask(ASKED))


@pytest.mark.thorough
@KINDS
def test_a_server_that_sends_a_byte_at_a_time_times_out(server, make):
    """Each read is quick, so the client's own time-out does not apply, but the complete answer would take minutes."""
    ask, _ = make(server, timeout=0.3)
    server.respond = lambda request: replace(openai(request), drip=1.0)
    with pytest.raises(CriticError, match=r"no complete answer within 0\.3 s") as caught:
        asyncio.run(ask(ASKED))
    assert len(str(caught.value)) <= 400


@pytest.mark.thorough
@KINDS
def test_a_silent_server_does_not_delay_the_end_of_the_process(server, make):
    ask, _ = make(server, timeout=0.3)
    server.respond = lambda request: HANG
    with pytest.raises(CriticError, match="no complete answer"):
        asyncio.run(ask(ASKED))
    names = {f"amc-{what}" for what in ("judge", "verdict", "summary", "embeddings")}
    still_asking = [thread for thread in threading.enumerate() if thread.name in names]
    assert still_asking
    assert all(thread.daemon for thread in still_asking)


@KINDS
def test_a_key_that_the_provider_repeats_is_not_shown(server, make):
    server.respond = lambda request: Reply(status=401, body={"error": {"message": f"{'x' * 150} wrong key {KEY}"}})
    ask, _ = make(server)
    with pytest.raises(CriticError, match="failed") as caught:
        asyncio.run(ask(ASKED))
    shown = "".join(traceback.format_exception(caught.value))
    assert "wrong key" in str(caught.value)
    assert KEY[:8] not in shown


@pytest.mark.parametrize("kind", ["judge", "foa", "verdict"])
def test_errors_of_an_untrusted_chat_model_do_not_quote_it(server, kind, caplog, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.respond = lambda request: Reply(status=400, body={"error": {"message": "CANARY"}})
    critic = parse_critic(f"{kind}:openai:m", trusted=False)
    with pytest.raises(CriticError, match="Details are in the log only") as caught:
        asyncio.run(critic.values(ASKED))
    assert "CANARY" not in "".join(traceback.format_exception(caught.value))
    assert "CANARY" in caplog.text


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": "many"}, {"prompt_tokens": 1, "completion_tokens": None}, [1], "none", None]
)
def test_an_answer_without_token_counts_counts_as_missing(usage):
    answer = AIMessage("Score: 1").model_copy(update={"usage_metadata": usage})
    assert usage_of(answer) == Usage(calls=1, missing=1)


def test_a_judgement_that_is_cancelled_counts_and_those_that_wait_do_not(server):
    asked = threading.Event()

    def hanging(request):
        asked.set()
        return HANG

    server.respond = hanging
    critic = JudgeCritic(
        ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=1.0), max_concurrent=1
    )

    async def cancelled():
        work = asyncio.ensure_future(critic.values(ASKED))
        await asyncio.to_thread(asked.wait)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(cancelled())
    assert critic.usage == Usage(calls=1, missing=1)
