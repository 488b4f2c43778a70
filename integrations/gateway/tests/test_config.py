"""The configuration file and the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import httpx
import pytest
from amc_agents_gateway.__main__ import main
from amc_agents_gateway.callers import Keys, digest
from amc_agents_gateway.config import GatewayConfig
from amc_agents_gateway.gateway import Gateway
from gateway_client import KEY, ask, plain_config

from amc_agents.errors import ConfigurationError

URL = "http://127.0.0.1:1"


def changed(**tables):
    return plain_config(URL) | tables


def of(table, **values):
    config = plain_config(URL)
    first, *rest = table.split(".")
    at = config.setdefault(first, {})
    for name in rest:
        at = at.setdefault(name, {})
    at.update(values)
    return config


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({}, "needs upstreams"),
        (changed(upstreams={}), "upstreams"),
        (changed(upstreams={"lac/x": {"model": "m"}}), "does not begin with lac/"),
        (changed(upstream={}), "the top level has no key 'upstream'"),
        (of("upstreams.small", base_url="ftp://x"), "base_url"),
        (of("upstreams.small", base_url="http://me:secret-word@x/v1"), "key_env"),
        (of("upstreams.small", timeout_s=0), "timeout_s"),
        (changed(critics={"judge": "judge:openai:m?api_key=secret-word"}), "key_env"),
        (of("lac", critics=["other"]), "names the critic 'other'"),
        (of("lac", critics=[]), r"\[lac\] needs critics"),
        (of("lac", upstreams=["other"]), "names the upstream 'other'"),
        (of("lac", world_model="other"), "names the upstream 'other'"),
        (of("lac", prior="thoughts"), "prior"),
        (of("pnlc", returns=[0.0]), "returns"),
        (changed(keys={}), "needs a table"),
        (of("server", anonymous=True), "cannot have both"),
        (of("server", port=70000), "port"),
        (of("keys.alice", sha256="secret-word"), "sha256"),
        (of("keys.alice", env="X"), "not both"),
        (of("keys.alice", budget={}), "needs tokens, dollars or calls"),
        (of("keys.alice", budget={"tokens": 1, "period": "week"}), "period"),
    ],
)
def test_a_wrong_configuration_is_refused_without_quoting_secrets(plain, says):
    with pytest.raises(ConfigurationError, match=says) as wrong:
        GatewayConfig.read(plain)
    assert "secret-word" not in str(wrong.value)
    assert len(str(wrong.value)) <= 400


def test_budgets_of_tokens_need_a_limit_of_every_answer():
    config = of("keys.alice", budget={"tokens": 10})
    GatewayConfig.read(config)
    del config["upstreams"]["small"]["default_max_tokens"]
    with pytest.raises(ConfigurationError, match="default_max_tokens for upstreams: small"):
        GatewayConfig.read(config)
    config["keys"]["alice"]["budget"] = {"calls": 10}
    GatewayConfig.read(config)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (of("pnlc", critics=["long"], critique="goals"), r"\[pnlc\] for the upstream small: pnlc does not take"),
        (changed(critics={"long": "nonsense:x"}, lac={"critics": ["long"]}), "was not understood"),
        (of("lac", depth=9), r"\[lac\] for the upstream small: depth"),
    ],
)
def test_critics_that_do_not_fit_are_refused_at_the_start(config, says):
    if "short" not in config["critics"]:
        config = {name: config[name] for name in ("upstreams", "critics", "keys", "lac")}
    with pytest.raises(ConfigurationError, match=says):
        Gateway(GatewayConfig.read(config))


def test_keys_may_come_from_the_environment(monkeypatch):
    tables = GatewayConfig.read(changed(keys={"alice": {"env": "ALICE_KEY"}})).keys
    with pytest.raises(ConfigurationError, match="ALICE_KEY, which is not set"):
        Keys(tables)
    monkeypatch.setenv("ALICE_KEY", "short")
    with pytest.raises(ConfigurationError, match="5 characters"):
        Keys(tables)
    monkeypatch.setenv("ALICE_KEY", KEY)
    keys = Keys(tables)
    assert keys.caller(f"Bearer {KEY}").name == "alice"
    assert KEY not in repr(vars(keys))
    both = GatewayConfig.read(changed(keys={"alice": {"env": "ALICE_KEY"}, "bob": {"sha256": digest(KEY)}})).keys
    with pytest.raises(ConfigurationError, match="the same key"):
        Keys(both)


def test_a_gateway_without_keys_serves_everyone(upstream, start):
    config = plain_config(upstream.url, keys={}, server={"anonymous": True})
    server, _ = start(config)
    told = httpx.get(f"{server.url}/v1/models")
    assert told.json()["data"][0]["id"] == "small"


def test_the_metrics_may_need_a_key(upstream, start, monkeypatch):
    monkeypatch.setenv("METRICS_KEY", "a-key-for-metrics")
    _, http = start(plain_config(upstream.url, server={"metrics_key_env": "METRICS_KEY"}))
    assert http.get("/metrics").status_code == 401
    assert http.get("/metrics", headers={"authorization": "Bearer a-key-for-metrics"}).status_code == 200


def test_the_command_serves_until_it_is_told_to_stop(upstream, tmp_path):
    path, log = tmp_path / "gateway.toml", tmp_path / "log"
    upstream_table = f'[upstreams.small]\nmodel = "m"\nbase_url = "{upstream.url}/v1"\ndefault_max_tokens = 9'
    key = f'[keys.alice]\nsha256 = "{digest(KEY)}"\nbudget = {{ tokens = 500 }}'
    path.write_text(f'{upstream_table}\n{key}\n[server]\nledger = "ledger.json"\n')
    command = [sys.executable, "-m", "amc_agents_gateway", "serve", str(path), "--port", "0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with log.open("wb") as output, subprocess.Popen(command, stderr=output, env=environment) as serving:
        while (running := re.search(r"running on (http://127\.0\.0\.1:\d+)", log.read_text())) is None:
            assert serving.poll() is None, log.read_text()
            time.sleep(0.05)
        with httpx.Client(base_url=running[1], headers={"authorization": f"Bearer {KEY}"}) as http:
            assert ask(http).status_code == 200
        serving.terminate()
        # uvicorn stops gracefully, and then ends as the signal would have ended it.
        assert serving.wait(30) == -signal.SIGTERM
    assert '"tokens": 13' in (tmp_path / "ledger.json").read_text()
    assert "key=alice model=small status=200 code=- " in log.read_text()
    assert KEY not in log.read_text()


def test_the_command_makes_keys_and_checks_files(tmp_path, capsys):
    assert main(["new-key", "alice"]) == 0
    printed = capsys.readouterr().out
    key = re.search(r"again: (amc-\S{43})\n", printed)[1]
    assert digest(key) in printed
    path = tmp_path / "gateway.toml"
    lines = [
        '[upstreams.small]\nmodel = "m"',
        '[critics]\nlong = "critics_for_tests:long"',
        '[lac]\ncritics = ["long"]',
    ]
    path.write_text("\n".join([*lines, printed, 'budget = { calls = 1 }\n[server]\nledger = "ledger.json"\n']))
    assert main(["check", str(path)]) == 0
    assert capsys.readouterr().out.split() == ["small", "lac/small"]
    assert GatewayConfig.load(path).server.ledger == str(tmp_path / "ledger.json")
    path.write_text("[")
    assert main(["check", str(path)]) == 1
    assert "is not valid TOML" in capsys.readouterr().err
    assert main(["check", str(tmp_path / "none.toml")]) == 1
    assert "No such file" in capsys.readouterr().err
