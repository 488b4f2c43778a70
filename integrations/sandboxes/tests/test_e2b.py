from __future__ import annotations

import json
from base64 import b64encode

import pytest

pytest.importorskip("e2b")

from amc_agents_sandboxes.e2b import E2BWorld
from e2b import AsyncSandbox

from amc_agents import current_environment, use_environment
from amc_agents.errors import EnvironmentStateError, ForkError
from amc_agents.types import Forkable


def sandbox(name):
    return {"templateID": "base", "sandboxID": name, "clientID": "c", "envdVersion": "0.5.0"}


@pytest.fixture
async def world(vendor):
    vendor.answers = {
        "POST /v2/sandboxes": (201, sandbox("one")),
        "POST /sandboxes/one/fork": (201, [{"sandbox": sandbox("two")}]),
        "DELETE /sandboxes/one": (204, b""),
        "DELETE /sandboxes/two": (204, b""),
        "GET /files": (200, b"content"),
        "POST /files": (200, [{"name": "a.txt", "type": "file", "path": "/a.txt"}]),
    }
    made = await AsyncSandbox.create(
        api_key="e2b_" + "0" * 40, api_url=vendor.url, sandbox_url=vendor.url, retries=0, http_version="1.1"
    )
    return E2BWorld(made, timeout=120)


async def test_a_fork_is_one_fork_of_the_sdk(world, vendor):
    assert isinstance(world, Forkable)
    twin = await world.fork(1)
    assert (world.sandbox.sandbox_id, twin.sandbox.sandbox_id) == ("one", "two")
    request, _, body, headers = vendor.requests[-1]
    assert request == "POST /sandboxes/one/fork"
    assert body == {"timeout": 120, "count": 1}
    assert headers["x-api-key"].startswith("e2b_")
    vendor.answers["POST /sandboxes/two/fork"] = (201, [{"sandbox": sandbox("three")}])
    assert (await twin.fork(2)).sandbox.sandbox_id == "three"
    assert vendor.requests[-1][2]["timeout"] == 120


@pytest.mark.parametrize(
    "answer",
    [
        (201, [{"error": {"code": 429, "message": "too many sandboxes"}}]),
        (429, {"code": 429, "message": "too many sandboxes"}),
    ],
)
async def test_a_refused_fork_is_a_fork_error(world, vendor, answer):
    vendor.answers["POST /sandboxes/one/fork"] = answer
    with pytest.raises(ForkError, match=r"E2BWorld could not fork: RateLimitException: .*too many"):
        await world.fork(1)


async def test_closing_deletes_the_sandbox_once(world, vendor):
    twin = await world.fork(1)
    for _ in range(2):
        await twin.close()
        await world.close()
    assert vendor.seen()[-2:] == ["DELETE /sandboxes/two", "DELETE /sandboxes/one"]
    for call in (world.fork(1), world.read("/a.txt")):
        with pytest.raises(EnvironmentStateError, match="closed"):
            await call


async def test_a_tool_reaches_the_files(world, vendor):
    with use_environment(world):
        assert await current_environment(E2BWorld).read("/a.txt") == b"content"
        await current_environment(E2BWorld).write("/a.txt", b"new")
    assert vendor.seen()[-2:] == ["GET /files", "POST /files"]
    assert "path=%2Fa.txt" in vendor.requests[-2][1]


def streamed(*events):
    """Answer a command in Connect's streaming format: each message has a flag and its length in front."""
    messages = [*((0, {"event": event}) for event in events), (2, {})]
    parts = [(flag, json.dumps(message).encode()) for flag, message in messages]
    body = b"".join(bytes([flag]) + len(part).to_bytes(4, "big") + part for flag, part in parts)
    return 200, body, "application/connect+json"


def text(kind, content):
    return {"data": {kind: b64encode(content.encode()).decode()}}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([text("stdout", "a"), text("stderr", "b"), text("stdout", "c"), {"end": {"exited": True}}], (0, "acb")),
        ([text("stderr", "no such file"), {"end": {"exitCode": 3, "exited": True}}], (3, "no such file")),
    ],
)
async def test_a_command_runs_in_the_sandbox(world, vendor, events, expected):
    vendor.answers["POST /process.Process/Start"] = streamed({"start": {"pid": 7}}, *events)
    assert await world.run("cat x") == expected
    request, _, body, headers = vendor.requests[-1]
    assert request == "POST /process.Process/Start"
    assert json.loads(body[5:])["process"] == {"cmd": "/bin/bash", "args": ["-l", "-c", "cat x"]}
    assert headers["content-type"] == "application/connect+json"
    assert headers["e2b-sandbox-id"] == "one"


async def test_a_command_whose_connection_breaks_is_an_error(world, vendor):
    vendor.answers["POST /process.Process/Start"] = streamed({"start": {"pid": 7}}, text("stdout", "a"))
    with pytest.raises(Exception, match=r"(?i)end event|without|stream"):
        await world.run("cat x")
