"""Model requests that name their session and program, as a router receives them."""

from __future__ import annotations

import json

import httpx
import pytest
from langchain.agents import create_agent

from amc_agents import Never, amc
from amc_agents.critics.value.pooling import SESSION_HEADER
from amc_agents.runtime.session_routing import SessionRouting

openai = pytest.importorskip("langchain_openai")


@pytest.fixture
def asked():
    return []


@pytest.fixture
def model(asked):
    def answer(request):
        asked.append((request.headers[SESSION_HEADER.lower()], json.loads(request.content).get("vllm_xargs")))
        message = {"role": "assistant", "content": "done"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]})

    transport = httpx.MockTransport(answer)
    return openai.ChatOpenAI(
        model="m",
        base_url="http://router/v1",
        api_key="none",
        http_client=httpx.Client(transport=transport),
        http_async_client=httpx.AsyncClient(transport=transport),
    )


def ask(agent, text):
    return agent.invoke({"messages": [("user", text)]})


def test_a_session_is_a_task(model, asked):
    agent = create_agent(model, middleware=[SessionRouting()])
    for text in ("one", "two", "one"):
        ask(agent, text)
    sessions = [session for session, _ in asked]
    assert sessions[0] == sessions[2] != sessions[1]
    assert [arguments for _, arguments in asked] == [None] * 3


def test_particles_share_the_session_and_are_programs_of_their_own(model, asked):
    agent = create_agent(model, middleware=[SessionRouting(programs=True)])
    settings = {"n_particles": 3, "resample": Never(), "stateless_tools": True, "step_after": ["model"]}
    ask(amc(agent, critic="uniform", reward=lambda state: 0.0, **settings), "one")
    assert len({session for session, _ in asked}) == 1
    programs = {arguments["agentic_context"]["program_id"] for _, arguments in asked}
    assert len(programs) == len(asked) == 3
