"""Limits and budgets per key."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from amc_agents_gateway.accounts import Accounts, charged
from amc_agents_gateway.callers import Admission, digest
from amc_agents_gateway.config import BudgetTable, KeyTable
from amc_agents_gateway.errors import ApiError
from conftest import client_of
from gateway_client import BOB, KEY, ask, error_of, plain_config
from upstream_server import answer, message, texts

from amc_agents.budget import Bound
from amc_agents.errors import ConfigurationError
from amc_agents.usage import Usage


def test_at_most_so_many_requests_in_any_minute():
    now = 0.0
    admission = Admission(KeyTable(requests_per_minute=2), lambda: now)

    def wait() -> float | None:
        """Seconds until a request would be admitted; None: it was."""
        try:
            with admission.admitted():
                return None
        except ApiError as error:
            return error.retry_after

    told = []
    for now in (0.0, 20.0, 59.0, 60.0, 60.0, 80.0):
        told.append((now, wait()))
    assert told == [(0.0, None), (20.0, None), (59.0, 1.0), (60.0, None), (60.0, 20.0), (80.0, None)]


def test_a_rate_limit_is_a_429_that_says_when_to_come_back(upstream, start):
    keys = {"alice": {"sha256": digest(KEY), "requests_per_minute": 2}, "bob": {"sha256": digest(BOB)}}
    server, http = start(plain_config(upstream.url, keys=keys))
    told = [ask(http) for _ in range(3)]
    assert [it.status_code for it in told] == [200, 200, 429]
    assert [it.headers.get("x-ratelimit-remaining-requests") for it in told] == ["1", "0", "0"]
    assert error_of(told[2]) == (429, "rate_limit_error", "rate_limit_exceeded", None)
    assert 1 <= int(told[2].headers["retry-after"]) <= 60
    with client_of(server.url) as others:
        others.headers["authorization"] = f"Bearer {BOB}"
        assert ask(others).status_code == 200


def test_concurrent_requests_are_limited_until_one_ends(upstream, start):
    keys = {"alice": {"sha256": digest(KEY), "max_concurrent": 1}}
    _, http = start(plain_config(upstream.url, keys=keys))
    arrived, go = threading.Event(), threading.Event()

    async def slow(body):
        arrived.set()
        await asyncio.to_thread(go.wait, 30)
        return answer(message("slow"))

    upstream.reply = slow
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(ask, http)
        assert arrived.wait(30)
        told = ask(http)
        assert error_of(told) == (429, "rate_limit_error", "concurrency_limit_exceeded", None)
        assert told.headers["retry-after"] == "1"
        go.set()
        assert first.result().status_code == 200
    upstream.reply = texts("hello")
    assert ask(http).status_code == 200


def test_a_key_may_use_the_models_of_its_patterns(upstream, start):
    keys = {"alice": {"sha256": digest(KEY), "models": ["lac/*"]}}
    _, http = start(plain_config(upstream.url, keys=keys))
    assert [model["id"] for model in http.get("/v1/models").json()["data"]] == ["lac/small"]
    told = ask(http)
    assert error_of(told)[2] == "model_not_found"
    assert "You may use lac/small" in told.json()["error"]["message"]
    upstream.reply = texts("a", "b", "c")
    assert ask(http, model="lac/small").status_code == 200


def budgeted(url, tmp_path=None, **budget):
    server = {} if tmp_path is None else {"ledger": str(tmp_path / "ledger.json")}
    return plain_config(url, keys={"alice": {"sha256": digest(KEY), "budget": budget}}, server=server)


def test_a_budget_counts_policy_and_critic_and_then_refuses(upstream, start):
    _, http = start(budgeted(upstream.url, calls=3))
    upstream.reply = texts("a", "aa", "aaa")
    assert ask(http, model="lac/small").status_code == 200  # a policy's call, and a critic without a budget of its own
    assert ask(http).status_code == 200
    assert ask(http).status_code == 200
    told = ask(http)
    assert error_of(told) == (429, "insufficient_quota", "insufficient_quota", None)
    assert "3 of 3 calls" in told.json()["error"]["message"]
    assert len(upstream.asked) == 3


def test_a_request_that_might_exceed_the_budget_is_not_made(upstream, start):
    _, http = start(budgeted(upstream.url, tokens=1000))
    told = ask(http, max_tokens=2000)
    assert error_of(told) == (429, "insufficient_quota", "insufficient_quota", None)
    assert upstream.asked == []
    assert ask(http, max_tokens=100).status_code == 200


def test_a_decision_reserves_all_its_samples(upstream, start):
    _, http = start(budgeted(upstream.url, tokens=1000))
    upstream.reply = texts("a", "b", "c")
    assert error_of(ask(http, model="lac/small", max_tokens=400))[2] == "insufficient_quota"
    assert upstream.asked == []
    assert ask(http, model="lac/small", max_tokens=100).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_reported_usage_is_charged_and_outlives_the_process(upstream, start, tmp_path, stream):
    config = budgeted(upstream.url, tmp_path, tokens=1000)
    server, http = start(config)
    assert ask(http, stream=stream).status_code == 200
    server.stop()
    ledger = json.loads((tmp_path / "ledger.json").read_text())
    assert ledger["keys"]["alice"] == {"period": "", "spent": {"tokens": 13, "dollars": 0.0, "calls": 0}}
    _, http = start(config)
    assert 'amc_gateway_budget_spent{key="alice",resource="tokens"} 13.0' in http.get("/metrics").text
    refusal = ask(http, max_tokens=1000).json()["error"]["message"]
    assert "13 of 1,000 tokens are spent, and a next call to a model may need 1,1" in refusal


def test_two_processes_do_not_share_a_ledger(upstream, tmp_path):
    table = {"alice": BudgetTable(calls=1)}

    async def both() -> None:
        async with Accounts(table, {}, tmp_path / "ledger.json").kept():
            with pytest.raises(ConfigurationError, match="in use"):
                async with Accounts(table, {}, tmp_path / "ledger.json").kept():
                    pass

    asyncio.run(both())


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"keys": 3}', '{"keys": {"alice": {}}}', '{"keys": {"a": {"spent": {"x": 1}}}}',
        *(json.dumps({"keys": {"a": {"period": "", "spent": {"tokens": amount}}}})
          for amount in (math.nan, -1, "5", True, None, math.inf, [])),
        *(json.dumps({"keys": {"a": {"period": period, "spent": {"tokens": 1}}}}) for period in (None, "x", 5)),
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_an_error(tmp_path, text):
    (tmp_path / "ledger.json").write_text(text)

    async def read() -> None:
        async with Accounts({}, {}, tmp_path / "ledger.json").kept():
            pass

    with pytest.raises(ConfigurationError, match="cannot be read"):
        asyncio.run(read())


def test_a_budget_of_a_period_starts_anew_with_the_next(tmp_path):
    now = datetime(2026, 11, 30, 23, tzinfo=UTC)
    table = {"alice": BudgetTable(calls=2, period="month"), "bob": BudgetTable(calls=2, period="day")}

    def accounts() -> Accounts:
        return Accounts(table, {}, tmp_path / "ledger.json", lambda: now)

    async def spend(key: str) -> None:
        async with opened.kept():
            with opened.spending(key):
                async with charged(Bound("m", 1, 1)) as charge:
                    charge.settle(Usage(calls=1))

    for key in ("alice", "bob"):
        for _ in range(2):
            opened = accounts()  # Each time as after a restart.
            asyncio.run(spend(key))
        opened = accounts()
        with pytest.raises(
            ApiError, match=r"2 of 2 calls are spent\. The budget starts anew with the next (month|day) \(UTC\)"
        ):
            asyncio.run(spend(key))
    now = datetime(2026, 12, 1, tzinfo=UTC)
    for key in ("alice", "bob"):
        opened = accounts()
        asyncio.run(spend(key))
    now = datetime(2026, 12, 2, tzinfo=UTC)
    opened = accounts()

    async def spent() -> list[float]:
        async with opened.kept():
            return [opened.account(key).spent.calls for key in ("alice", "bob")]

    assert asyncio.run(spent()) == [1, 0]


def test_a_clock_that_goes_back_starts_no_budget_anew(tmp_path):
    now = datetime(2026, 12, 2, tzinfo=UTC)
    table = {"alice": BudgetTable(calls=2, period="day")}

    async def spend(accounts: Accounts) -> None:
        async with accounts.kept():
            with accounts.spending("alice"):
                async with charged(Bound("m", 1, 1)) as charge:
                    charge.settle(Usage(calls=1))

    running = Accounts(table, {}, tmp_path / "ledger.json", lambda: now)
    asyncio.run(spend(running))
    now = datetime(2026, 12, 1, tzinfo=UTC)
    asyncio.run(spend(running))
    for accounts in (running, Accounts(table, {}, tmp_path / "ledger.json", lambda: now)):
        with pytest.raises(ApiError, match="2 of 2 calls are spent"):
            asyncio.run(spend(accounts))
    now = datetime(2026, 12, 3, tzinfo=UTC)
    asyncio.run(spend(running))


@pytest.mark.parametrize(
    ("critic", "message"),
    [
        ("judge:openai:x?max_tokens=none", "'openai:x' has no max_tokens"),
        ("judge:openai:x", "more than the whole budget"),
    ],
)
def test_a_judge_that_no_budget_allows_is_an_error_at_the_start(upstream, start, monkeypatch, critic, message):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    config = budgeted(upstream.url, tokens=2000)
    config["critics"]["judge"] = critic
    with pytest.raises(ConfigurationError, match=message):
        start(config)


def test_a_budget_of_dollars_needs_prices(upstream, start):
    config = budgeted(upstream.url, dollars=1.0)
    with pytest.raises(ConfigurationError, match="org/small"):
        start(config)
    config["prices"] = {"org/small": {"input": 1000.0, "output": 2000.0}}
    _, http = start(config)
    assert ask(http).status_code == 200
    # 10 x $0.001 + 3 x $0.002
    assert 'amc_gateway_budget_spent{key="alice",resource="dollars"} 0.016' in http.get("/metrics").text
