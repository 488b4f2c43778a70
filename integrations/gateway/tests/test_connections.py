"""Clients that leave, many clients at the same time, and the end of the server."""

from __future__ import annotations

import asyncio
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import httpx
import pytest
from gateway_client import KEY, ask, body_of, error_of, events_of, plain_config
from upstream_server import answer, chunk, message


class Hanging:
    """An upstream's answer that never comes; tells when it was asked for and when its client left."""

    def __init__(self) -> None:
        self.asked, self.left = threading.Event(), threading.Event()

    async def reply(self, body):
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()

    async def streamed(self, request):
        try:
            yield chunk({"content": "first"})
            self.asked.set()
            await asyncio.Event().wait()
        finally:
            self.left.set()


@pytest.mark.parametrize("model", ["small", "lac/small"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_cancels_the_upstreams_work(gateway, upstream, model, stream):
    hanging = Hanging()
    upstream.reply, upstream.streamed = hanging.reply, hanging.streamed
    async with _client(gateway.url) as http:
        before = await _left(http, model)
        asked = asyncio.create_task(http.post("/v1/chat/completions", json=body_of(model=model, stream=stream)))
        assert await asyncio.to_thread(hanging.asked.wait, 30)
        asked.cancel()
        assert await asyncio.to_thread(hanging.left.wait, 30)
        async with asyncio.timeout(30):
            while await _left(http, model) == before:
                await asyncio.sleep(0.01)


def _client(url: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {KEY}"}
    return httpx.AsyncClient(base_url=url, headers=headers, timeout=60, verify=False)


async def _left(http, model: str) -> float:
    """Number of clients that left."""
    line = re.escape(f'amc_gateway_requests_total{{code="",key="alice",model="{model}",status="499"}} ')
    counted = re.search(f"{line}(.*)", (await http.get("/metrics")).text)
    return float(counted[1]) if counted else 0.0


async def test_200_requests_are_held_at_the_same_time(gateway, upstream):
    n, waiting = 200, []
    everyone = asyncio.Event()

    async def reply(body):
        waiting.append(body)
        if len(waiting) == n:
            everyone.set()
        await everyone.wait()  # No request is answered before all have arrived.
        return answer(message(body["messages"][0]["content"]))

    upstream.reply = reply
    bodies = [body_of(messages=[{"role": "user", "content": f"request {i}"}]) for i in range(n)]
    async with AsyncExitStack() as stack:
        # httpx takes time quadratic in the connections of a client.
        clients = [await stack.enter_async_context(_client(gateway.url)) for _ in range(8)]
        sent = (clients[i % 8].post("/v1/chat/completions", json=body) for i, body in enumerate(bodies))
        told = await asyncio.gather(*sent)
    assert [it.json()["choices"][0]["message"]["content"] for it in told] == [f"request {i}" for i in range(n)]


class Slow:
    """An upstream's answer that comes when it may."""

    def __init__(self) -> None:
        self.asked, self.go = threading.Event(), threading.Event()

    async def reply(self, body):
        self.asked.set()
        await asyncio.to_thread(self.go.wait, 60)
        return answer(message("slow"))


def test_a_stop_refuses_new_requests_at_once(upstream, start):
    server, http = start(plain_config(upstream.url, server={"drain_delay_s": 600.0}))
    slow = Slow()
    upstream.reply = slow.reply
    with ThreadPoolExecutor(1) as threads, httpx.Client(base_url=server.url) as probe:
        assert probe.get("/ready").json() == {"ready": True, "stopping": False, "upstreams": {"small": True}}
        first = threads.submit(ask, http)
        assert slow.asked.wait(30)
        server.server.handle_exit(signal.SIGINT, None)
        ready = probe.get("/ready")
        assert (ready.status_code, ready.json()["stopping"]) == (503, True)
        refused = ask(probe)
        assert error_of(refused) == (503, "server_error", "shutting_down", None)
        assert refused.headers["retry-after"] == "1"
        slow.go.set()
        assert first.result().status_code == 200
    server.server.handle_exit(signal.SIGINT, None)
    server.thread.join(30)
    assert not server.thread.is_alive()


def test_a_stop_waits_for_requests_in_progress(upstream, start):
    server, http = start(plain_config(upstream.url))
    slow = Slow()
    upstream.reply = slow.reply
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(ask, http)
        assert slow.asked.wait(30)
        server.server.handle_exit(signal.SIGTERM, None)
        while _listens(server.url):
            time.sleep(0.01)
        slow.go.set()
        assert first.result().json()["choices"][0]["message"]["content"] == "slow"
    server.thread.join(30)
    assert not server.thread.is_alive()


def _listens(url: str) -> bool:
    try:
        httpx.get(f"{url}/health")
    except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
        return False
    return True


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_outlasts_the_stop_is_told_so(upstream, start, stream):
    server, http = start(plain_config(upstream.url, server={"drain_timeout_s": 1}))
    hanging = Hanging()
    upstream.reply, upstream.streamed = hanging.reply, hanging.streamed
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, http, stream=stream)
        assert hanging.asked.wait(30)
        server.server.handle_exit(signal.SIGTERM, None)
        if stream:
            assert events_of(asked.result())[-1]["error"]["code"] == "shutting_down"
        else:
            assert error_of(asked.result()) == (503, "server_error", "shutting_down", None)
    assert hanging.left.wait(30)
