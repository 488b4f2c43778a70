"""Malformed requests are 400, malformed answers of an upstream 502, and unusual forms pass; nothing is 500."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import socket
import time
from contextlib import suppress
from typing import Any

import httpx
import pytest
from gateway_client import KEY, QUESTION, ask, body_of, error_of, plain_config
from starlette.responses import Response
from upstream_server import answer, call, chunk, message, texts

MODELS = ("small", "lac/small", "best-of-n/small", "pnlc/small")
ATOMS: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    [],
    {},
    [1],
    ["a"],
    {"a": 1},
    [None],
    [[]],
    {"type": "text"},
    10**30,
]
PARTS = [
    {"type": "text", "text": "what is this?"},
    {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
    {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
]
REQUEST: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": PARTS},
        {"role": "assistant", "content": None, "tool_calls": [call("look", '{"a": 1}')]},
        {"role": "tool", "tool_call_id": "call_1", "content": "seen"},
        {"role": "user", "content": "go", "name": "bob"},
    ],
    "temperature": 0.5, "stop": ["a"], "seed": 1, "tool_choice": "auto", "n": 1, "max_tokens": 5, "logprobs": None,
    "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
    "response_format": {"type": "text"}, "modalities": ["text"], "logit_bias": {"1": 1}, "audio": None,
    "stream_options": None, "amc": {"critic": "long"}, "functions": None, "top_logprobs": None,
}  # fmt: skip


def mutated(value: Any, rng: random.Random) -> Any:
    """Replace or remove one node of a JSON value."""
    changed = json.loads(json.dumps(value))
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(changed)
    node, key = rng.choice(places)
    if isinstance(node, dict) and rng.random() < 0.3:
        del node[key]
    else:
        node[key] = rng.choice(ATOMS)
    return changed


@pytest.mark.parametrize("model", MODELS)
def test_a_malformed_request_is_400(http, upstream, model):
    upstream.reply = texts("a", "aa", "aaa")
    rng = random.Random(model)
    for _ in range(40):
        body = mutated(REQUEST, rng)
        told = http.post("/v1/chat/completions", json={"model": model, **body})
        assert told.status_code in (200, 400), (told.text, body)


@pytest.mark.parametrize("model", MODELS[1:])
def test_a_malformed_answer_is_502(http, upstream, model):
    rng = random.Random(model)
    for _ in range(40):
        whole = mutated(answer(*(message("a" * i, tool_calls=[call("look", "{}")]) for i in range(1, 4))), rng)
        upstream.reply = lambda body, whole=whole: whole
        told = ask(http, model=model)
        assert told.status_code in (200, 502), (told.text, whole)


@pytest.mark.parametrize("arguments", [{"at": "a"}, None, ["a"], "no json", ""])
@pytest.mark.parametrize("model", MODELS)
def test_calls_in_other_forms_pass_on_every_route(http, upstream, model, arguments):
    upstream.reply = texts("a", "aa", "aaa")
    without_id = {"type": "function", "function": {"name": "look", "arguments": arguments}}
    asked = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [without_id]}]
    asked += [{"role": "tool", "content": "seen"}, *QUESTION]
    assert ask(http, model=model, messages=asked).status_code == 200
    assert upstream.asked[0]["messages"][: len(asked) - 1] == asked[:-1]


@pytest.mark.parametrize("model", MODELS)
def test_files_audio_and_images_go_upstream_as_they_came(http, upstream, model):
    upstream.reply = texts("a", "aa", "aaa")
    assert ask(http, model=model, messages=[{"role": "user", "content": PARTS}]).status_code == 200
    # PNLC also sends prompts of its own.
    sent = [message["content"] for body in upstream.asked for message in body["messages"]]
    assert [content[: len(PARTS)] for content in sent if isinstance(content, list)] == [PARTS] * len(upstream.asked[:1])


def test_a_request_has_a_limited_number_of_items(start, upstream):
    _, http = start(plain_config(upstream.url, server={"max_messages": 3}))
    assert ask(http, messages=QUESTION * 3).status_code == 200
    refused = (
        {"messages": QUESTION * 4},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 4}]},
        {"messages": [{"role": "assistant", "tool_calls": [call("look", "{}")] * 4}]},
        {"messages": QUESTION, "tools": [{"type": "function"}] * 4},
    )
    for body in refused:
        assert error_of(ask(http, **body))[2] == "too_many_items"


def test_an_answer_is_limited_after_decompression(start, upstream):
    config = plain_config(upstream.url)
    config["upstreams"]["small"]["max_answer_bytes"] = 100_000
    _, http = start(config)
    whole = json.dumps(answer(message("a" * 90_000))).encode()
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    upstream.reply = lambda body: Response(gzip.compress(whole), headers=headers)
    assert ask(http).status_code == 200
    assert upstream.headers[-1]["accept-encoding"] == "identity"
    upstream.reply = lambda body: Response(gzip.compress(b" " * 10_000_000 + whole), headers=headers)
    for model in MODELS:
        assert error_of(ask(http, model=model))[:3] == (502, "server_error", "upstream_error")
    upstream.reply = lambda body: Response(whole, headers={**headers, "content-encoding": "zstd"})
    assert ask(http).status_code == 502


def test_an_event_of_a_stream_is_limited_and_may_come_in_any_pieces(start, upstream):
    config = plain_config(upstream.url)
    config["upstreams"]["small"]["max_answer_bytes"] = 100_000
    _, http = start(config)
    sent = b"".join([chunk({"content": "a\u2028b"}), chunk({"content": "c"}), b"data: [DONE]\n\n"])

    async def bytewise(request):
        for i in range(len(sent)):
            yield sent[i : i + 1]

    async def endless(request):
        while True:
            yield b"data: " + b"x" * 10_000
            await asyncio.sleep(0.001)

    upstream.streamed = bytewise
    assert ask(http, stream=True).content == sent
    upstream.streamed = endless
    told = ask(http, stream=True)
    assert (told.status_code, told.json()["error"]["code"]) == (502, "upstream_error")


def connection(url: str) -> socket.socket:
    host = httpx.URL(url)
    made = socket.create_connection((host.host, host.port))
    made.settimeout(20)
    return made


def test_headers_that_do_not_end_are_not_waited_for(start, upstream):
    server, _ = start(plain_config(upstream.url, server={"header_timeout_s": 0.2}))
    for begun in (b"", b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauth"):
        with connection(server.url) as client:
            client.sendall(begun)
            # A closed connection reads as its end, or as a reset.
            with suppress(ConnectionResetError):
                assert client.recv(1) == b""


@pytest.mark.parametrize("limit", [{"stall_timeout_s": 0.2}, {"request_timeout_s": 0.3, "stall_timeout_s": 2}])
def test_a_client_that_stops_reading_is_ended(start, upstream, limit):
    """Its request is cancelled, and its connection is closed."""
    server, http = start(plain_config(upstream.url, server=limit))

    async def long(request):
        while True:
            yield chunk({"content": "x" * 60_000})
            await asyncio.sleep(0.001)  # The upstream notices only between two pieces that the gateway has left.

    upstream.streamed = long
    body = json.dumps(body_of(stream=True)).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\ncontent-length: {len(body)}"
    )
    with connection(server.url) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        deadline = time.monotonic() + 20
        while "amc_gateway_in_progress 1.0" not in http.get("/metrics").text:
            assert time.monotonic() < deadline
        while "amc_gateway_in_progress 0.0" not in http.get("/metrics").text:
            assert time.monotonic() < deadline
        with suppress(ConnectionResetError):
            while client.recv(1_000_000):
                assert time.monotonic() < deadline
