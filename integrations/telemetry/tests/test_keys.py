"""Keys in traces. `tests/test_canaries.py` of the core names the keys."""

from __future__ import annotations

import pytest
from langchain_openai import ChatOpenAI
from seen import Seen

from amc_agents.errors import AmcError
from tests.scripted_http import scripted_server
from tests.test_canaries import (
    CHAT,
    CRITIC_KEY,
    HEADER_KEY,
    INPUT,
    POLICY_KEY,
    _fresh_secrets,
    answering,
    judge,
    planted_in,
    policy,
    population,
    refusing,
)  # fmt: skip

__all__ = ["_fresh_secrets"]
URL_WITH_KEY = f"http://me:{POLICY_KEY}@host/v1"


@pytest.mark.parametrize("content", [False, True])
async def test_a_trace_shows_no_key(content):
    with Seen(capture_content=content) as seen, scripted_server({CHAT: answering}) as server:
        await population(policy(server), judge(server), last=f"401: {CRITIC_KEY}, {URL_WITH_KEY}").arun(INPUT)
        assert seen.runs
        assert "judge" in seen.text
        assert planted_in(seen.text) == []


@pytest.mark.parametrize("content", [False, True])
async def test_the_trace_of_a_failure_shows_no_key(content):
    with Seen(capture_content=content) as seen, scripted_server({CHAT: refusing}) as server:
        # The error of this policy repeats its URL, which holds a key, and its headers.
        model = ChatOpenAI(
            model="policy", base_url=server.url.replace("://", f"://me:{POLICY_KEY}@") + "/v1", api_key=POLICY_KEY,
            default_headers={"X-Own-Key": HEADER_KEY}, max_retries=0,
        )  # fmt: skip
        with pytest.raises(AmcError):
            await population(model, judge(server)).arun(INPUT)
        assert "error.type" in seen.text
        assert planted_in(seen.text) == []
