"""`amc doctor` on real vLLM servers."""

from __future__ import annotations

import httpx
import pytest

from amc_agents.config import Endpoint
from amc_agents.operations.doctor import Patient, examine

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def policy_model(policy_url):
    return served(policy_url)


@pytest.fixture(scope="module")
def value_model(value_url):
    return served(value_url)


def served(url):
    """Return the name of a server's only model."""
    return httpx.get(f"{url}/v1/models").json()["data"][0]["id"]


async def checks_of(patient):
    return {check.name: check for check in await examine(patient)}


SIDE_BY_SIDE = "policy logprobs side by side"


async def test_healthy_servers_pass_all_checks(policy_url, value_url, policy_model, value_model):
    patient = Patient(f"vllm:{value_url}?model={value_model}", Endpoint(model=policy_model, base_url=policy_url))
    checks = await checks_of(patient)
    # vLLM 0.32 overwrites log-probabilities of concurrent requests in most runs of this check, not in all.
    neighbours = checks.pop(SIDE_BY_SIDE)
    assert neighbours.state == "ok" or "next to logprob_token_ids" in neighbours.detail
    assert [check for check in checks.values() if check.state == "failed"] == []
    names = [name for name in checks if name.startswith(("critic", "policy"))]
    assert {checks[name].state for name in names} == {"ok"}, checks
    assert len(names) == 11
    assert "reads at most" in checks["critic model"].detail
    assert "handshake passed" in checks["critic answers"].detail


async def test_a_wrong_model_name_is_reported_with_the_right_name(policy_url, value_url, policy_model, value_model):
    checks = await checks_of(Patient(f"vllm:{value_url}?model=other", Endpoint(model="other", base_url=policy_url)))
    assert checks["critic model"].state == checks["policy model"].state == "failed"
    assert value_model in checks["critic model"].detail
    assert policy_model in checks["policy model"].detail


async def test_a_value_model_is_no_policy_and_a_policy_no_value_model(policy_url, value_url, policy_model, value_model):
    patient = Patient(f"vllm:{policy_url}?model={policy_model}", Endpoint(model=value_model, base_url=value_url))
    checks = await checks_of(patient)
    assert checks["critic answers"].state == "failed"
    assert checks["policy chat"].state == "failed"
    assert checks["policy prompt logprobs"].state == "skipped"
