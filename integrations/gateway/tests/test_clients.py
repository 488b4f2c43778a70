"""Clients that know nothing of the gateway: only their base URL is changed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import httpx
import openai
import pytest
from gateway_client import KEY, QUESTION, plain_config
from langchain_openai import ChatOpenAI
from starlette.responses import JSONResponse
from upstream_server import USAGE, answer, call, chunk, message, texts

LOOK = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
MODELS = ["small", "lac/small", "best-of-n/small"]


@pytest.fixture
def client(gateway):
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
def calls(upstream):
    """The upstream calls the tool, and after its result answers in text."""

    def reply(body):
        if body["messages"][-1]["role"] == "tool":
            return answer(*[message(f"It is {body['messages'][-1]['content']}.")] * (body.get("n") or 1))
        return answer(*[message(None, tool_calls=[call("look", '{"at":"sky"}')])] * (body.get("n") or 1))

    async def streamed(request):
        yield chunk({"role": "assistant", "tool_calls": [{"index": 0, **call("look", "")}]})
        for piece in ('{"at"', ':"sky"}'):
            yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        yield chunk({}, finish_reason="tool_calls")
        yield chunk(None)
        yield b"data: [DONE]\n\n"

    upstream.reply, upstream.streamed = reply, streamed


@pytest.mark.parametrize("model", MODELS)
def test_openai_sync_and_streaming(client, upstream, model):
    upstream.reply = texts(*["hello"] * 3)
    told = client.chat.completions.create(model=model, messages=QUESTION)
    assert told.choices[0].message.content == "hello"
    assert told.usage.completion_tokens == USAGE["completion_tokens"]
    stream = client.chat.completions.create(
        model=model, messages=QUESTION, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(it.choices[0].delta.content or "" for it in chunks) == "hello"
    assert last.usage.completion_tokens == USAGE["completion_tokens"]
    assert next(iter(client.models.list())).id == "small"


@pytest.mark.parametrize("model", MODELS)
async def test_openai_async_and_tools(gateway, calls, model):
    async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as client:
        conversation = list(QUESTION)
        told = await client.chat.completions.create(model=model, messages=conversation, tools=[LOOK])
        turn = told.choices[0].message
        assert (turn.tool_calls[0].function.name, turn.tool_calls[0].function.arguments) == ("look", '{"at":"sky"}')
        conversation += [turn, {"role": "tool", "tool_call_id": turn.tool_calls[0].id, "content": "blue"}]
        told = await client.chat.completions.create(model=model, messages=conversation, tools=[LOOK])
        assert told.choices[0].message.content == "It is blue."
        async with client.chat.completions.stream(model=model, messages=QUESTION, tools=[LOOK]) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.tool_calls[0].function.arguments == '{"at":"sky"}'
        assert final.choices[0].finish_reason == "tool_calls"


def test_openai_sees_what_was_spent_and_chooses_a_critic(client, upstream):
    upstream.reply = texts("aa", "a", "aa")
    told = client.chat.completions.create(
        model="best-of-n/small", messages=QUESTION, extra_body={"amc": {"critic": "short"}}
    )
    assert told.choices[0].message.content == "a"
    assert told.amc["decisions"][0]["critic"] == "short"
    assert set(told.amc["usage"]) == {"policy", "critic"}


def test_openai_raises_its_own_errors(client, upstream, gateway):
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.chat.completions.create(model="gpt", messages=QUESTION)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="small", messages=[])
    assert wrong.value.param == "messages"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").chat.completions.create(model="small", messages=QUESTION)
    upstream.reply = lambda body: JSONResponse({}, 429, {"retry-after": "1"})
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(model="small", messages=QUESTION)
    upstream.reply = lambda body: JSONResponse({}, 503)
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="small", messages=QUESTION)


def test_openai_raises_an_error_within_a_stream(client, upstream):
    async def broken(request):
        yield chunk({"content": "hel"})

    upstream.streamed = broken
    stream = iter(client.chat.completions.create(model="small", messages=QUESTION, stream=True))
    assert next(stream).choices[0].delta.content == "hel"
    with pytest.raises(openai.APIError, match="broke off"):
        next(stream)


@pytest.mark.parametrize("model", MODELS)
async def test_chat_openai(gateway, calls, model):
    async with httpx.AsyncClient() as http:
        chat = ChatOpenAI(
            model=model,
            base_url=f"{gateway.url}/v1",
            api_key=KEY,
            max_retries=0,
            http_async_client=http,
            extra_body={} if model == "small" else {"amc": {"critic": "short"}},
        ).bind_tools([LOOK])
        told = await chat.ainvoke("hi")
        streamed = None
        async for piece in chat.astream("hi", stream_usage=True):
            streamed = piece if streamed is None else streamed + piece
    assert told.tool_calls[0]["args"] == {"at": "sky"}
    assert told.usage_metadata["output_tokens"] == USAGE["completion_tokens"]
    assert streamed.tool_calls[0]["args"] == {"at": "sky"}
    assert streamed.usage_metadata["output_tokens"] == USAGE["completion_tokens"]


@pytest.mark.service
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", MODELS)
def test_litellm(gateway, upstream, model):
    litellm = pytest.importorskip("litellm")
    upstream.reply = texts(*["hello"] * 3)
    asked = {"model": f"openai/{model}", "api_base": f"{gateway.url}/v1", "api_key": KEY, "messages": QUESTION}
    told = litellm.completion(**asked)
    assert told.choices[0].message.content == "hello"
    assert told.usage.completion_tokens == USAGE["completion_tokens"]
    pieces = litellm.completion(**asked, stream=True)
    assert "".join(it.choices[0].delta.content or "" for it in pieces) == "hello"
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**asked, "model": "openai/lac/large"})


@pytest.mark.service
@pytest.mark.parametrize("model", MODELS)
def test_the_ai_sdk(upstream, start, calls, model):
    """AMC_AI_SDK is a folder in which `npm install ai @ai-sdk/openai-compatible zod` was run."""
    folder = os.environ.get("AMC_AI_SDK")
    if folder is None or shutil.which("node") is None:
        pytest.skip("needs node, and AMC_AI_SDK")
    server, _ = start(plain_config(upstream.url))
    script = Path(folder) / "amc_gateway_test.mjs"
    shutil.copy(Path(__file__).with_name("ai_sdk.mjs"), script)
    done = subprocess.run(
        ["node", str(script), f"{server.url}/v1", KEY, model], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["generated"] == {"text": "It is blue.", "steps": 2, "outputTokens": 2 * USAGE["completion_tokens"]}
    assert told["streamed"] == {"toolName": "look", "input": {"at": "sky"}}
    assert told["error"] == 404
