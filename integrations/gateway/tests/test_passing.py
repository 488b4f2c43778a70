"""Plain upstreams: answers and streams are passed on."""

from __future__ import annotations

from gateway_client import ask, error_of, events_of, plain_config
from starlette.responses import JSONResponse
from upstream_server import USAGE, answer, call, chunk, message


def test_answers_are_passed_on_unchanged(http, upstream):
    upstream.reply = lambda body: answer(message("héllo \u2028 there", reasoning_content="because"), extension=1)
    told = ask(http, temperature=0.5, top_k=3).json()
    assert told == answer(message("héllo \u2028 there", reasoning_content="because"), extension=1)
    (asked,) = upstream.asked
    assert asked["model"] == "org/small"
    assert (asked["temperature"], asked["top_k"]) == (0.5, 3)


def test_the_default_limit_holds_only_for_requests_without_a_limit(http, upstream):
    ask(http)
    ask(http, max_tokens=7)
    ask(http, max_completion_tokens=8)
    limits = [(body.get("max_tokens"), body.get("max_completion_tokens")) for body in upstream.asked]
    assert limits == [(16, None), (7, None), (None, 8)]


def test_a_clients_key_stays_in_the_gateway(http, upstream):
    ask(http)
    assert "authorization" not in upstream.headers[0]


def test_the_upstream_gets_its_own_key(upstream, start, monkeypatch):
    monkeypatch.setenv("UPSTREAM_KEY", "sk-upstream-secret")
    config = plain_config(upstream.url)
    config["upstreams"]["small"]["key_env"] = "UPSTREAM_KEY"
    _, http = start(config)
    ask(http)
    assert upstream.headers[0]["authorization"] == "Bearer sk-upstream-secret"
    upstream.reply = lambda body: JSONResponse({"error": {"message": "bad: sk-upstream-secret"}}, 400)
    told = ask(http)
    assert told.json()["error"]["message"] == "bad: ***"


def test_tools_and_halves_of_surrogate_pairs_are_passed_on(http, upstream):
    upstream.reply = lambda body: answer(message(None, tool_calls=[call("look", '{"at": "\\ud83d"}')]))
    body = '{"model": "small", "messages": [{"role": "user", "content": "\\ud83d"}], "tools": []}'
    told = http.post("/v1/chat/completions", content=body)
    assert told.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    assert upstream.asked[0]["messages"][0]["content"] == "\ud83d"


def test_streams_are_passed_on_and_usage_comes_only_if_wanted(http, upstream):
    upstream.streamed = ["a\u2028b", "c"]
    *events, done = events_of(ask(http, stream=True))
    assert done == "[DONE]"
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "a\u2028bc"
    assert not any("usage" in event for event in events)
    *events, last, _ = events_of(ask(http, stream=True, stream_options={"include_usage": True}))
    assert (last["usage"], last["choices"]) == (USAGE, [])
    # The gateway counts tokens, whether the client wants to or not.
    assert [body["stream_options"] for body in upstream.asked] == [{"include_usage": True}] * 2


def test_events_may_come_in_pieces_with_other_line_ends(http, upstream):
    async def pieces(request):
        whole = chunk({"content": "hé"}).replace(b"\n", b"\r\n") + b": a comment\r\n\r\ndata: [DONE]\r\n\r\n"
        for i in range(len(whole)):
            yield whole[i : i + 1]

    upstream.streamed = pieces
    told = ask(http, stream=True)
    assert told.text == (chunk({"content": "hé"}) + b": a comment\n\ndata: [DONE]\n\n").decode()


def test_a_stream_that_breaks_off_ends_with_an_error(http, upstream):
    async def broken(request):
        yield chunk({"content": "hel"})

    upstream.streamed = broken
    first, error = events_of(ask(http, stream=True))
    assert first["choices"][0]["delta"] == {"content": "hel"}
    assert error["error"]["code"] == "upstream_error"


def test_an_answer_that_is_no_stream_is_an_error(http, upstream):
    upstream.streamed = None
    assert error_of(ask(http, stream=True)) == (502, "server_error", "upstream_error", None)


def test_models_are_listed(http):
    listed = http.get("/v1/models").json()
    names = [model["id"] for model in listed["data"]]
    assert names == ["small", "lac/small", "pnlc/small", "best-of-n/small"]
    assert http.get("/v1/models/lac/small").json()["id"] == "lac/small"
    assert error_of(http.get("/v1/models/lac/large")) == (404, "invalid_request_error", "model_not_found", "model")
