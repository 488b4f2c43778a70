"""Failures of the connection to an upstream: what the client is told, and what its budget is charged."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from amc_agents_gateway.accounts import charged
from amc_agents_gateway.config import UpstreamTable
from amc_agents_gateway.errors import UpstreamError
from amc_agents_gateway.upstream import Upstream

from amc_agents.budget import Bound, Budget
from amc_agents.runtime.budget_keeper import bounded
from amc_agents.usage import Usage

BOUND = Bound("m", 100, 50)
NOTHING, A_CALL, ALL = {"tokens": 0, "calls": 0}, {"tokens": 0, "calls": 1}, {"tokens": 150, "calls": 1}


def answering(respond) -> Upstream:
    return Upstream("small", UpstreamTable(model="m", base_url="http://x/v1"), httpx.MockTransport(respond))


@pytest.mark.parametrize(
    ("failure", "status", "code", "charge"),
    [
        (httpx.ConnectError("x"), 502, "upstream_unreachable", NOTHING),
        (httpx.ConnectTimeout("x"), 504, "upstream_timeout", NOTHING),
        (httpx.PoolTimeout("x"), 504, "upstream_timeout", NOTHING),
        (httpx.ReadTimeout("x"), 504, "upstream_timeout", ALL),
        (httpx.RemoteProtocolError("x"), 502, "upstream_error", ALL),
        (httpx.Response(400, json={}), 400, None, A_CALL),
        (httpx.Response(500, text="x"), 502, "upstream_error", A_CALL),
        (httpx.Response(302, headers={"location": "http://y"}), 502, "upstream_error", A_CALL),
        (httpx.Response(200, text="x"), 502, "upstream_error", ALL),
    ],
)
async def test_failures(failure, status, code, charge):
    def respond(request):
        if isinstance(failure, httpx.Response):
            return failure
        raise failure

    upstream, budget = answering(respond), Budget(tokens=1000, calls=10)
    with bounded(budget), pytest.raises(UpstreamError) as told:
        async with charged(BOUND):
            await upstream.complete({"messages": []})
    assert (told.value.status, told.value.code) == (status, code)
    assert budget.spent == charge


@pytest.mark.parametrize(("usage", "charge"), [(None, ALL), (Usage(1, 10, 3), {"tokens": 13, "calls": 1})])
async def test_a_cancelled_request_is_charged_its_bound_unless_its_usage_is_known(usage, charge):
    budget = Budget(tokens=1000, calls=10)

    async def cancelled() -> None:
        async with charged(BOUND) as reservation:
            if usage is not None:
                reservation.settle(usage)
            raise asyncio.CancelledError

    with bounded(budget), pytest.raises(asyncio.CancelledError):
        await cancelled()
    assert budget.spent == charge


async def test_an_upstream_is_reachable_if_it_answers_at_all():
    assert await answering(lambda request: httpx.Response(404)).reachable()
    assert not await answering(lambda request: httpx.Response(503)).reachable()
