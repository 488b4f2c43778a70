"""Errors come in OpenAI's form, with the right status."""

from __future__ import annotations

import asyncio
import socket

import pytest
from gateway_client import KEY, ask, error_of, plain_config
from starlette.responses import JSONResponse, PlainTextResponse


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages.0"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 17}, "n"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 1}, "max_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {}}, "stream_options"),
        ({"tools": {}}, "tools"),
        ({"amc": "judge"}, "amc"),
        ({"amc": {"critic": 1}}, "amc.critic"),
    ],
)
def test_a_wrong_parameter_is_named(http, upstream, body, param):
    assert error_of(ask(http, **body)) == (400, "invalid_request_error", None, param)
    assert upstream.asked == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": "wizard", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": 5},
        {"role": "assistant", "content": "x", "tool_calls": [5]},
        {"role": "assistant", "content": {"a": 1}},
    ],
)
def test_a_wrong_message_is_named(http, message):
    asked = ask(http, model="lac/small", messages=[{"role": "user", "content": "x"}, message])
    assert error_of(asked) == (400, "invalid_request_error", None, "messages.1")


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"model": NaN}', "[" * 100_000, "\ud83d".encode("utf-8", "surrogatepass")]
)
def test_what_is_no_json_object_is_a_400(http, content):
    assert error_of(http.post("/v1/chat/completions", content=content))[:3] == (
        400,
        "invalid_request_error",
        "invalid_json",
    )


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer wrong", "Basic abc", "Bearer \u00fc"])
def test_without_a_key_of_the_gateway_there_is_no_answer(http, upstream, header):
    headers = {} if header is None else {"authorization": header.encode()}
    del http.headers["authorization"]
    for told in (http.post("/v1/chat/completions", json={}, headers=headers), http.get("/v1/models", headers=headers)):
        assert (told.status_code, told.headers["www-authenticate"]) == (401, "Bearer")
        assert told.json()["error"]["code"] in ("invalid_api_key", "missing_api_key")
    assert upstream.asked == []


def test_an_unknown_model_or_path_is_a_404(http):
    assert error_of(ask(http, model="lac/large")) == (404, "invalid_request_error", "model_not_found", "model")
    assert error_of(http.post("/v1/responses", json={})) == (404, "invalid_request_error", "not_found", None)
    assert error_of(http.get("/v1/chat/completions"))[0] == 405


def test_a_long_request_is_refused_before_it_is_read(upstream, start):
    _, http = start(plain_config(upstream.url, server={"max_body_bytes": 1000}))
    long = {"content": "x" * 2000}
    assert error_of(ask(http, messages=[long]))[:3] == (413, "invalid_request_error", "request_too_large")
    # Without a Content-Length too.
    pieces = (b"x" * 100 for _ in range(100))
    assert http.post("/v1/chat/completions", content=pieces).status_code == 413


def test_a_request_that_does_not_arrive_is_a_408(upstream, start):
    server, _ = start(plain_config(upstream.url, server={"body_timeout_s": 0.05}))
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        lines = ("POST /v1/chat/completions HTTP/1.1", "Host: x", f"Authorization: Bearer {KEY}", "Content-Length: 50")
        connection.sendall("\r\n".join((*lines, "", "{")).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


UPSTREAM = {"message": "too long", "type": "x", "code": "context_length_exceeded", "param": "messages"}


@pytest.mark.parametrize("model", ["small", "lac/small"])
@pytest.mark.parametrize(
    ("answered", "told"),
    [
        ((400, {"error": UPSTREAM}), (400, "invalid_request_error", "context_length_exceeded", "messages")),
        ((400, {"object": "error", "message": "old form", "code": 400}), (400, "invalid_request_error", None, None)),
        ((422, {"detail": "x"}), (400, "invalid_request_error", None, None)),
        ((401, {"error": UPSTREAM}), (502, "server_error", "upstream_error", None)),
        ((404, {"error": UPSTREAM}), (502, "server_error", "upstream_error", None)),
        ((500, {}), (502, "server_error", "upstream_error", None)),
        ((200, {"no": "choices"}), (502, "server_error", "upstream_error", None)),
    ],
)
def test_errors_of_upstreams(http, upstream, model, answered, told):
    upstream.reply = lambda body: JSONResponse(answered[1], answered[0])
    assert error_of(ask(http, model=model)) == told


@pytest.mark.parametrize("model", ["small", "lac/small", "pnlc/small"])
def test_an_upstreams_rate_limit_is_passed_on_at_once(http, upstream, model):
    upstream.reply = lambda body: JSONResponse({"error": {"message": "slow"}}, 429, {"retry-after": "17"})
    told = ask(http, model=model)
    assert error_of(told) == (429, "rate_limit_error", "upstream_rate_limit", None)
    assert told.headers["retry-after"] == "17"


def test_an_answer_that_is_no_json_is_a_502(http, upstream):
    upstream.reply = lambda body: PlainTextResponse("<html>")
    assert error_of(ask(http))[:3] == (502, "server_error", "upstream_error")


def test_an_unreachable_upstream_is_a_502(start):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        _, http = start(plain_config(f"http://127.0.0.1:{unused.getsockname()[1]}"))
        for model in ("small", "lac/small"):
            assert error_of(ask(http, model=model)) == (502, "server_error", "upstream_unreachable", None)
        assert http.get("/ready").status_code == 503
        assert http.get("/health").status_code == 200


async def _never(body):
    await asyncio.Event().wait()


@pytest.mark.parametrize("server", [{"request_timeout_s": 0.05}, {}])
def test_an_upstream_that_hangs_is_a_504(upstream, start, server):
    config = plain_config(upstream.url, server=server)
    config["upstreams"]["small"]["timeout_s"] = 30.0 if server else 0.05
    _, http = start(config)
    upstream.reply = _never
    code = "timeout" if server else "upstream_timeout"
    for model in ("small", "lac/small"):
        assert error_of(ask(http, model=model)) == (504, "server_error", code, None)


def test_requests_have_an_id_which_the_client_may_choose(http):
    assert ask(http).headers["x-request-id"]
    told = http.post("/v1/chat/completions", json={}, headers={"x-request-id": "mine-1"})
    assert told.headers["x-request-id"] == "mine-1"
    told = http.post("/v1/chat/completions", json={}, headers={"x-request-id": "x" * 65})
    assert len(told.headers["x-request-id"]) == 32


def test_logs_have_neither_keys_nor_texts(http, upstream, caplog):
    caplog.set_level("DEBUG", logger="amc_agents_gateway")
    ask(http, messages=[{"role": "user", "content": "a private question"}])
    http.post("/v1/chat/completions", json={}, headers={"authorization": "Bearer some-other-key"})
    assert "key=alice model=small status=200 code=- " in caplog.text
    assert "tokens=13" in caplog.text
    assert "status=401 code=invalid_api_key" in caplog.text
    assert not any(secret in caplog.text for secret in (KEY, "some-other-key", "private", "hello"))
