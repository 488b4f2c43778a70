"""A configuration of a gateway for tests, and requests to it."""

from __future__ import annotations

import json
from typing import Any

import httpx
from amc_agents_gateway.callers import digest

KEY = "amc-test-key-of-alice"
BOB = "amc-test-key-of-bob"
QUESTION = [{"role": "user", "content": "hi"}]


def plain_config(url: str, **tables: Any) -> dict[str, Any]:
    """A configuration with the upstream `small`, the critics `long`, `short` and `broken`, and alice's key."""
    upstream = {"model": "org/small", "base_url": f"{url}/v1", "default_max_tokens": 16}
    config: dict[str, Any] = {
        "upstreams": {"small": upstream},
        "critics": {name: f"critics_for_tests:{name}" for name in ("long", "short", "broken")},
        "keys": {"alice": {"sha256": digest(KEY)}},
        "lac": {"critics": ["long", "short", "broken"], "k": 3, "alpha": 10.0},
        "best-of-n": {"critics": ["long", "short"], "k": 3},
        "pnlc": {"critics": ["long"], "critique": "value", "m": 2},
    }
    return config | tables


def body_of(**more: Any) -> dict[str, Any]:
    return {"model": "small", "messages": QUESTION} | more


def ask(http: httpx.Client, **more: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json=body_of(**more))


def events_of(response: httpx.Response) -> list[Any]:
    """The events of a stream; the last is the text [DONE]."""
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


def error_of(response: httpx.Response) -> tuple[int, str, str | None, str | None]:
    """Status, type, code and parameter of an error."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert len(error["message"]) <= 400
    return response.status_code, error["type"], error["code"], error["param"]
