"""What docs/gateway.md shows, it shows as it is."""

from __future__ import annotations

import re
import tomllib

import documented
import pytest
from amc_agents_gateway.config import (
    BudgetTable,
    GatewayConfig,
    KeyTable,
    LacTable,
    PnlcTable,
    ServerTable,
    UpstreamTable,
)
from amc_agents_gateway.gateway import Gateway
from gateway_client import KEY
from upstream_server import texts


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.setenv("ALICE_KEY", KEY)


def test_the_configuration_names_servers_that_need_not_run_yet():
    gateway = Gateway(GatewayConfig.read(tomllib.loads(documented.block("toml"))))
    assert list(gateway.targets) == ["policy", "lac/policy", "pnlc/policy", "best-of-n/policy"]


def test_the_client_runs(upstream, start, tmp_path, capsys):
    upstream.reply = texts(*["get 2 clay"] * 5)
    plain = documented.config(upstream.url, "critics_for_tests:long")
    server, _ = start(plain | {"server": {"ledger": str(tmp_path / "ledger.json")}})
    documented.run_client(server.url)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "get 2 clay 20"  # 13 of the policy, 7 of the critic
    assert second.startswith("uniform {'policy': {'calls': 1,")


@pytest.mark.parametrize("table", [ServerTable, UpstreamTable, LacTable, PnlcTable, KeyTable, BudgetTable])
def test_every_key_of_the_file_is_documented(table):
    rows = re.findall(r"^\| `\[.*$", documented.PAGE, re.MULTILINE)
    for name in table.model_fields:
        assert any(f"`{name}`" in row for row in rows), name
