"""Critics over the chat models and embeddings of LangChain, asked over real sockets from one event loop and another."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from amc_agents.critics.embeddings import LangChainEmbeddings
from amc_agents.critics.judge import JudgeCritic
from amc_agents.critics.summaries import ChatSummary
from amc_agents.critics.verdict import VerdictCritic
from amc_agents.critics.verdict_top_k import TopKReader
from amc_agents.errors import CriticError
from amc_agents.nodes.background import run_in_background
from amc_agents.types import Step, Task, Trajectory
from tests.critics.scripted_server import Reply, ScriptedServer

ASKED = [Trajectory(Task("t", "Climb."), (Step("climb", f"rung {n}"),)) for n in range(3)]
TOP = [{"token": token, "logprob": math.log(p), "bytes": None} for token, p in (("GOOD", 0.6), ("BAD", 0.2))]


def openai(request):
    """What OpenAI's two addresses answer."""
    if request.path == "/v1/embeddings":
        data = [{"object": "embedding", "index": n, "embedding": [1.0, float(n)]} for n in range(3)]
        return Reply(body={"object": "list", "model": "m", "data": data, "usage": {"prompt_tokens": 3}})
    said = {"role": "assistant", "content": "Score: 0.75"}
    logprobs = {"content": [{"token": "GOOD", "logprob": TOP[0]["logprob"], "bytes": None, "top_logprobs": TOP}]}
    choice = {"index": 0, "finish_reason": "stop", "message": said, "logprobs": logprobs}
    usage = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}
    whole = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
    return Reply(body=whole)


@pytest.fixture
def server():
    """On a loop of its own, so that a test may run and close others."""
    scripted = ScriptedServer(openai)
    run_in_background(scripted.start(), n_workers=1)
    yield scripted
    run_in_background(scripted.stop(), n_workers=1)


def chat(server):
    return ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def judge(server):
    critic = JudgeCritic(chat(server))
    return critic.values, [0.75] * 3


def verdict(server):
    critic = VerdictCritic(TopKReader(chat(server)))
    return critic.values, [0.75] * 3


def summary(server):
    described = ChatSummary(chat(server))

    async def ask(states):
        return (await described.describe(states)).states

    return ask, ["Score: 0.75"] * 3


def embeddings(server):
    model = OpenAIEmbeddings(
        model="m", base_url=f"{server.url}/v1", api_key="none", max_retries=0, check_embedding_ctx_length=False
    )

    async def ask(states):
        return (await LangChainEmbeddings(model).embed([one.steps[0].observation for one in states])).vectors

    return ask, [[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]]


KINDS = pytest.mark.parametrize("make", [judge, verdict, summary, embeddings])


@KINDS
def test_it_is_asked_from_one_event_loop_and_the_next(server, make):
    ask, expected = make(server)
    for _ in range(3):
        assert np.array_equal(asyncio.run(ask(ASKED)), expected) or np.allclose(asyncio.run(ask(ASKED)), expected)


@KINDS
def test_the_policys_client_is_not_disturbed_nor_disturbs(server, make):
    """Clients of one provider share their connections, and an async one's belong to one loop."""
    ask, _ = make(server)
    policy = chat(server)

    async def run():
        for _ in range(3):
            assert (await policy.ainvoke("Go on.")).text == "Score: 0.75"
            await ask(ASKED)
        await policy.root_async_client.close()

    asyncio.run(asyncio.wait_for(run(), 20))


@KINDS
def test_its_failure_is_the_critics(server, make):
    server.respond = lambda request: Reply(status=400, body={"error": {"message": "no credit left"}})
    ask, _ = make(server)
    with pytest.raises(CriticError, match="no credit left"):
        asyncio.run(ask(ASKED))
