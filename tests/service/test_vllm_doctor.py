"""`amc doctor` on real vLLM servers. The fixtures `policy_url` and `value_url` give their addresses."""

from __future__ import annotations

import httpx
import pytest

from amc_agents.config import Endpoint
from amc_agents.doctor import Patient, examine

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def policy_model(policy_url):
    return served(policy_url)


@pytest.fixture(scope="module")
def value_model(value_url):
    return served(value_url)


def served(url):
    """The name under which a server has its only model."""
    return httpx.get(f"{url}/v1/models").json()["data"][0]["id"]


async def found(patient):
    return {check.name: check for check in await examine(patient)}


SIDE_BY_SIDE = "policy logprobs side by side"


async def test_everything_is_well(policy_url, value_url, policy_model, value_model):
    patient = Patient(f"vllm:{value_url}?model={value_model}", Endpoint(model=policy_model, base_url=policy_url))
    checks = await found(patient)
    # vLLM 0.32 overwrites neighbours' log-probabilities, in most runs of this check and not in all.
    neighbours = checks.pop(SIDE_BY_SIDE)
    assert neighbours.state == "ok" or "beside logprob_token_ids" in neighbours.detail
    assert [check for check in checks.values() if check.state == "failed"] == []
    asked = [name for name in checks if name.startswith(("critic", "policy"))]
    assert {checks[name].state for name in asked} == {"ok"}, checks
    assert len(asked) == 11
    assert "reads at most" in checks["critic model"].detail
    assert "handshake passed" in checks["critic answers"].detail


async def test_a_model_of_another_name_is_named(policy_url, value_url, policy_model, value_model):
    checks = await found(Patient(f"vllm:{value_url}?model=other", Endpoint(model="other", base_url=policy_url)))
    assert checks["critic model"].state == checks["policy model"].state == "failed"
    assert value_model in checks["critic model"].detail
    assert policy_model in checks["policy model"].detail


async def test_a_value_model_is_no_policy_and_a_policy_no_value_model(policy_url, value_url, policy_model, value_model):
    patient = Patient(f"vllm:{policy_url}?model={policy_model}", Endpoint(model=value_model, base_url=value_url))
    checks = await found(patient)
    assert checks["critic answers"].state == "failed"
    assert checks["policy chat"].state == "failed"
    assert checks["policy prompt logprobs"].state == "skipped"
