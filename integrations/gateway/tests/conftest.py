from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from amc_agents_gateway.config import GatewayConfig
from amc_agents_gateway.server import GatewayServer
from gateway_client import KEY, plain_config
from upstream_server import Served, Upstream, plain_server, served

Start = Callable[[dict[str, Any]], tuple[Served, httpx.Client]]


@pytest.fixture(scope="session")
def _upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    with served(plain_server(upstream.app)) as server:
        upstream.url = server.url
        yield upstream


@pytest.fixture
def upstream(_upstream: Upstream) -> Upstream:
    """A scripted upstream that says "hello"."""
    fresh = Upstream()
    for name in ("asked", "headers", "reply", "streamed"):
        setattr(_upstream, name, getattr(fresh, name))
    return _upstream


@pytest.fixture
def start() -> Iterator[Start]:
    """Start gateways: a function of a configuration that returns the server and alice's client."""
    with ExitStack() as stack:

        def started(config: dict[str, Any]) -> tuple[Served, httpx.Client]:
            server = stack.enter_context(served(GatewayServer(GatewayConfig.read(config))))
            return server, stack.enter_context(client_of(server.url))

        yield started


@pytest.fixture(scope="session")
def _gateway(_upstream: Upstream) -> Iterator[Served]:
    with served(GatewayServer(GatewayConfig.read(plain_config(_upstream.url)))) as server:
        yield server


@pytest.fixture
def gateway(upstream: Upstream, _gateway: Served) -> Served:
    """A gateway of `plain_config`, shared by the tests."""
    return _gateway


@pytest.fixture
def http(gateway: Served) -> Iterator[httpx.Client]:
    """Alice's client of the shared gateway."""
    with client_of(gateway.url) as client:
        yield client


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=30)
