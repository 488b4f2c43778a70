"""What a request may name as its critic, and which hosts it may reach."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from amc_agents.critics import spec as spec_module
from amc_agents.critics.allowed import AllowedCritics, AllowedHosts
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.spec import UniformCritic
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.errors import ConfigurationError, CriticSpecError


class Zero:
    async def values(self, trajectories):
        return np.zeros(len(trajectories))


ZERO = Zero()


def test_offered_names_and_shipped_models_are_allowed():
    allowed = AllowedCritics({"mine": ZERO, "tests.critics.test_allowed:ZERO": "uniform"})
    assert allowed.parse("mine") is ZERO
    assert isinstance(allowed.parse("uniform"), UniformCritic)
    # A name that the operator offers comes first, whatever it looks like.
    assert isinstance(allowed.parse("tests.critics.test_allowed:ZERO"), UniformCritic)
    for spec in ("embedded:crafting", "verdict:embedded:crafting"):
        assert type(allowed.parse(spec)).__module__.startswith("amc_agents.critics")


@pytest.mark.parametrize(
    "spec",
    [
        "tests.critics.test_allowed:ZERO",
        "hf:folder",
        "goal:folder",
        "calibrated:folder",
        "embedded:/tmp/folder",
        "embedded:../folder",
        "verdict:embedded:/tmp/folder",
        "embedded:crafting?adapter=folder",
        "judge:openai:gpt-5-mini",
        "judge:http://gpu7",
        "foa:openai:gpt-5-mini",
        "verdict:openai:gpt-5-mini",
        "vendor:place",
        "vllm:http://gpu7",
        "openhands:http://gpu7?tools=file",
        "nothing",
        "",
        "u" * 5000,
    ],
)
def test_nothing_else_is_allowed_by_default(spec, monkeypatch):
    monkeypatch.setitem(spec_module.KINDS, "vendor", lambda target, options: ZERO)
    with pytest.raises(CriticSpecError) as caught:
        AllowedCritics({"mine": ZERO}).parse(spec)
    assert len(str(caught.value)) <= 400


def test_a_listed_host_allows_no_other_kind(monkeypatch):
    monkeypatch.setitem(spec_module.KINDS, "vendor", lambda target, options, *, trusted: ZERO)
    for kind in ("vendor", "judge", "openhands", "hf", "goal"):
        with pytest.raises(CriticSpecError, match="a request may not name the critic"):
            AllowedCritics(hosts=["gpu7"]).parse(f"{kind}:http://gpu7")


def test_the_refusal_lists_what_is_allowed():
    with pytest.raises(CriticSpecError, match="allows mine, uniform, embedded:crafting, vllm:URL, "):
        AllowedCritics({"mine": ZERO}, hosts=["gpu7"]).parse("judge:openai:m")


@pytest.mark.parametrize("kind", ["vllm", "verdict", "classify"])
def test_a_server_must_be_listed(kind):
    allowed = AllowedCritics(hosts=["GPU7.:8000", "10.0.0.7", "::1", "[fd00::1]:9"])
    for address in ("gpu7:8000", "gpu7.:8000/v1", "10.0.0.7", "10.0.0.7:1", "[::1]:3", "[fd00:0::1]:9"):
        assert allowed.parse(f"{kind}:http://{address}")
    others = ("gpu7", "gpu7:80", "gpu8:8000", "10.0.0.8", "[fd00::1]", "[::ffff:a00:7]", "gpu7.evil.test:8000")
    for address in (*others, "evil.test#gpu7:8000", "gpu7:8000@evil.test"):
        with pytest.raises(ConfigurationError):
            allowed.parse(f"{kind}:http://{address}")


@pytest.mark.parametrize("option", ["timeout", "retry_for", "max_batch", "key_env", "checkpoint"])
def test_a_request_sets_no_key_and_no_option_that_occupies_the_process(option):
    with pytest.raises(CriticSpecError, match=f"may not .*{option}|may not name files"):
        AllowedCritics(hosts=["gpu7"]).parse(f"vllm:http://gpu7?{option}=9")


def refused(hosts, host, port=80, address=None):
    try:
        AllowedHosts(hosts).check(host, port, address)
    except CriticSpecError:
        return True
    return False


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "localhost", "LOCALHOST.", "10.1.2.3", "192.168.0.1", "172.16.0.1", "100.64.0.1", "0.0.0.0",
     "224.0.0.1",
     "255.255.255.255", "192.0.2.1", "::1", "::", "fd00::1", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
     "2002:a00:1::", "ff02::1", "::a00:1", "::ffff:0:a00:1", "64:ff9b:1::a00:1", "2001:0:a00:1::1", "fec0::1"],
)  # fmt: skip
def test_any_public_address_is_never_a_private_one(address):
    assert refused(["*"], address)
    if "localhost" not in address.lower():
        assert refused(["*"], "name.test", address=address)


def test_public_addresses_and_networks():
    assert not refused(["*"], "8.8.8.8")
    assert not refused(["*"], "name.test", address="2600::1")
    assert not refused(["*"], "name.test"), "decided when the name is resolved"
    assert not refused(["10.1.0.0/16"], "name.test", address="10.1.9.9")
    assert refused(["10.1.0.0/16"], "name.test", address="10.2.0.1")
    assert refused(["gpu7"], "name.test"), "a name that is not listed is not even resolved"
    assert refused([], "8.8.8.8")


@pytest.mark.parametrize(
    "entry",
    ["", "http://gpu7", "me@gpu7", "gpu7/path", "10.1.0.1/16", "*.test", "gpu 7", "gpu7:x", "gpu7:99999", "gpu7?a"],
)
def test_an_invalid_entry_is_refused_at_once(entry):
    with pytest.raises(ConfigurationError, match=r"an allowed (host|network) looks like"):
        AllowedCritics(hosts=[entry])


@pytest.fixture
def resolves(monkeypatch):
    """Lets every name resolve to the addresses in the returned list."""
    addresses: list[str] = []

    async def getaddrinfo(self, host, port, **more):
        return [(0, 0, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return addresses


def server_of(critic: Any) -> ModelServer:
    assert isinstance(critic, VLLMCritic)
    return critic._server


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["127.0.0.1"], ["::ffff:127.0.0.1"]])
async def test_a_public_name_may_not_resolve_to_a_private_address(resolves, addresses):
    """Not even if a later address is public, or if the name was public when it was checked first."""
    server = server_of(AllowedCritics(hosts=["*"]).parse("vllm:http://name.test?model=m"))
    resolves[:] = addresses
    with pytest.raises(CriticSpecError, match=r"may not name the host name\.test"):
        await server.get("/x")


async def test_a_listed_name_may_be_private_but_not_a_metadata_service(resolves):
    server = server_of(AllowedCritics(hosts=["gpu7"]).parse("vllm:http://gpu7?model=m"))
    resolves[:] = ["10.0.0.1"]
    async with await server._client() as client:
        assert client.base_url.host == "10.0.0.1"
        assert client.headers["host"] == "gpu7"
    resolves[:] = ["169.254.169.254"]
    with pytest.raises(ConfigurationError, match="metadata services are refused"):
        await server.get("/x")


def test_the_rule_does_not_outlive_the_parsing():
    AllowedCritics(hosts=["gpu7"]).parse("vllm:http://gpu7")
    spec_module.parse_critic("vllm:http://127.0.0.1:8000", trusted=False)
