"""The order of what happens in a request."""

from __future__ import annotations

import asyncio
import json

import pytest
from amc_agents_gateway.app import Exchange
from amc_agents_gateway.callers import Caller
from amc_agents_gateway.config import GatewayConfig
from amc_agents_gateway.gateway import Gateway
from gateway_client import KEY, body_of, plain_config


class Target:
    """Answers at once."""

    def check(self, asked):
        pass

    async def answer(self, asked):
        return {"answered": True}

    async def events(self, asked):
        yield b"data: {}"


@pytest.mark.parametrize("stream", [False, True])
async def test_limits_are_released_before_the_client_has_its_answer(stream):
    gateway = Gateway(GatewayConfig.read(plain_config("http://127.0.0.1:1")))
    gateway.targets["small"] = Target()
    admission = gateway.admission(Caller("alice", gateway.config.keys["alice"]))
    requests = [{"type": "http.request", "body": json.dumps(body_of(stream=stream)).encode()}]
    sent = []

    async def receive():
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message):
        sent.append((message.get("body", b"")[-8:], admission.in_progress))

    scope = {"type": "http", "headers": [(b"authorization", f"Bearer {KEY}".encode())]}
    await Exchange(gateway)(scope, receive, send)
    if stream:
        assert sent == [(b"", 1), (b"ta: {}\n\n", 1), (b"[DONE]\n\n", 0), (b"", 0)]
    else:
        assert sent == [(b"", 0), (b'd":true}', 0)]
