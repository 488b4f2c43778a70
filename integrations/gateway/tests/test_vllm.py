"""A gateway before real vLLM servers of the shipped policy and value model, as docs/gateway.md sets them up.

AMC_VLLM_PYTHON is the path of a Python interpreter with vLLM; a CPU build is enough.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import documented
import httpx
import openai
import pytest
from amc_agents_gateway.config import GatewayConfig
from amc_agents_gateway.server import GatewayServer
from gateway_client import KEY, error_of
from langchain_openai import ChatOpenAI
from upstream_server import Served, served

from amc_agents.envs.crafting import generate_task
from amc_agents.operations.serve import VllmServer, Where, chosen_port, command, environment, find_vllm, served_model
from amc_agents.operations.serve.vllm_command import VARIABLE

pytestmark = [pytest.mark.service, pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set")]
QUESTION = [{"role": "user", "content": generate_task(7, "examples", optimal_steps=(2, 4)).instruction}]


@pytest.fixture(scope="module")
def servers(tmp_path_factory) -> Iterator[dict[str, VllmServer]]:
    vllm, folder = find_vllm(), tmp_path_factory.mktemp("logs")
    variables = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    started = {}
    try:
        for role in ("policy", "value"):
            where = Where(port=chosen_port("127.0.0.1", 0))
            line = command(vllm, served_model(role, "crafting", name=role), where, ("--enforce-eager",))
            started[role] = VllmServer(line, environment(vllm, variables), where.url, folder / role, start_seconds=400)
            started[role].start()
        for server in started.values():
            server.wait_until_healthy(400)
        yield started
    finally:
        for server in started.values():
            server.close()


@pytest.fixture(scope="module")
def gateway(servers, tmp_path_factory) -> Iterator[Served]:
    os.environ["ALICE_KEY"] = KEY
    plain = documented.config(servers["policy"].url, f"vllm:{servers['value'].url}?model=value")
    config = GatewayConfig.read(plain, folder=tmp_path_factory.mktemp("gateway"))
    with served(GatewayServer(config)) as server:
        yield server


@pytest.fixture
def client(gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


def test_the_documented_client_runs(gateway, capsys):
    documented.run_client(gateway.url)
    first, second = capsys.readouterr().out.splitlines()
    assert int(first.split()[-1]) > 0
    assert second.startswith("uniform {'policy': {'calls': 1,")
    assert httpx.get(f"{gateway.url}/ready").json()["upstreams"] == {"policy": True}


@pytest.mark.parametrize("model", ["lac/policy", "best-of-n/policy", "pnlc/policy"])
def test_decisions(client, model):
    told = client.chat.completions.create(model=model, messages=QUESTION, temperature=1.0, n=2)
    assert all(choice.message.content for choice in told.choices)
    assert told.amc["usage"]["critic"]["input_tokens"] > 0
    assert told.usage.prompt_tokens == sum(usage["input_tokens"] for usage in told.amc["usage"].values())
    assert told.usage.completion_tokens == sum(usage["output_tokens"] for usage in told.amc["usage"].values())
    assert [decision["critic"] for decision in told.amc["decisions"]] == ["value", "value"]


async def test_asynchronous_clients(gateway):
    asked = {"model": "lac/policy", "base_url": f"{gateway.url}/v1", "api_key": KEY}
    async with openai.AsyncOpenAI(base_url=asked["base_url"], api_key=KEY, max_retries=0) as client:
        told = await client.chat.completions.create(model=asked["model"], messages=QUESTION)
    assert "Action:" in told.choices[0].message.content
    async with httpx.AsyncClient(timeout=60) as http:
        chat = ChatOpenAI(**asked, http_async_client=http, stream_usage=True)
        message = await chat.ainvoke(QUESTION)
        assert "Action:" in message.text
        assert message.usage_metadata["output_tokens"] > 0
        assert "Action:" in "".join([piece.text async for piece in chat.astream(QUESTION)])


@pytest.mark.filterwarnings("ignore")
def test_litellm(gateway):
    litellm = pytest.importorskip("litellm", reason="make test-clients installs it in an environment of its own")
    asked = {"model": "openai/lac/policy", "api_base": f"{gateway.url}/v1", "api_key": KEY, "messages": QUESTION}
    assert "Action:" in litellm.completion(**asked).choices[0].message.content
    pieces = litellm.completion(**asked, stream=True)
    assert "Action:" in "".join(piece.choices[0].delta.content or "" for piece in pieces)


def test_log_probabilities_are_the_policys_own(client):
    told = client.chat.completions.create(model="best-of-n/policy", messages=QUESTION, logprobs=True, top_logprobs=2)
    entries = told.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries).startswith(told.choices[0].message.content[:10])
    assert all(len(entry.top_logprobs) >= 2 for entry in entries)


@pytest.mark.parametrize("model", ["policy", "lac/policy"])
def test_streams_say_the_same_as_whole_answers(client, model):
    asked = {"model": model, "messages": QUESTION, "temperature": 1.0, "seed": 1}
    whole = client.chat.completions.create(**asked)
    *chunks, last = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert last.usage.completion_tokens == whole.usage.completion_tokens


def test_what_vllm_refuses_the_client_sees(client, gateway):
    too_long = [{"role": "user", "content": "get 2 clay " * 5000}]
    for model in ("policy", "lac/policy"):
        with pytest.raises(openai.BadRequestError, match=r"(?i)token|length"):
            client.chat.completions.create(model=model, messages=too_long)
    wrong = {"model": "policy", "messages": QUESTION, "temperature": -1}
    told = httpx.post(f"{gateway.url}/v1/chat/completions", json=wrong, headers={"authorization": f"Bearer {KEY}"})
    assert error_of(told)[0] == 400


async def test_a_client_that_leaves_ends_the_work_of_vllm(gateway, servers):
    url = f"{servers['policy'].url}/metrics"
    async with httpx.AsyncClient(timeout=60) as http:

        async def running() -> float:
            lines = (await http.get(url)).text.splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running"))

        # Long enough not to end by itself before the metrics are read, however late that is.
        body = {"model": "policy", "messages": QUESTION, "max_tokens": 3000, "ignore_eos": True, "n": 16}
        headers = {"authorization": f"Bearer {KEY}"}
        asked = asyncio.create_task(http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers))
        async with asyncio.timeout(60):
            while not await running():
                assert not asked.done(), asked.result().text
                await asyncio.sleep(0.01)
            assert not asked.done(), asked.result().text
            asked.cancel()
            while await running():
                await asyncio.sleep(0.01)
        metrics = (await http.get(f"{gateway.url}/metrics")).text
    assert 'status="499"' in metrics
