"""A judge whose answer a real vLLM server forces into a JSON object: a model of random weights could not write one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.judge.style import JudgeStyle, response_format, stated_number
from amc_agents.errors import CriticError
from amc_agents.operations.serve import ServedModel
from amc_agents.types import Step, Task, Trajectory
from tests.service.servers import needs_vllm, vllm_server
from tests.service.test_vllm_classifier import write_classifier

pytest.importorskip("torch")
pytestmark = pytest.mark.service
ANY = (-1e300, 1e300)
STYLE = JudgeStyle("short", "Judge it.", "{trajectory}", stated_number("Score:"), ANY)
STATE = Trajectory(Task("t", "Climb."), (Step("climb", "You are on rung 1."),))


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A server of a small causal Llama that writes any bytes."""
    from transformers import AutoConfig, LlamaForCausalLM

    folder = write_classifier(tmp_path_factory.mktemp("policy"))
    made: Any = LlamaForCausalLM(AutoConfig.from_pretrained(folder))
    made.lm_head.weight.data.zero_()  # every byte is as likely as any other, so a text ends after some hundred
    made.save_pretrained(folder)
    with vllm_server(ServedModel("policy", str(folder), "policy", "float32")) as server:
        yield server.url


def model(url: str, **settings: Any) -> ChatOpenAI:
    given = {"model": "policy", "base_url": f"{url}/v1", "api_key": "any", "max_retries": 0, "timeout": 120}
    return ChatOpenAI(**{**given, "temperature": 1.0, "max_completion_tokens": 600, "seed": 1} | settings)


@needs_vllm
def test_the_server_forces_any_model_into_the_form(url):
    critic = JudgeCritic(model(url), style=STYLE, structured=True)
    (value,) = asyncio.run(critic.values([STATE]))
    assert 0.0 <= value <= 1.0
    assert (critic.usage.calls, critic.usage.missing) == (1, 0)
    asked = response_format(JudgeStyle(**{**vars(STYLE), "whole": True}))
    answer = json.loads(model(url).invoke("Judge it.", response_format=asked).text)
    assert list(answer) == ["analysis", "score"]
    assert isinstance(answer["score"], int)


@needs_vllm
def test_an_answer_that_is_cut_off_is_an_error(url):
    with pytest.raises(CriticError, match=r"length limit|cannot be parsed"):
        asyncio.run(JudgeCritic(model(url, max_completion_tokens=5), style=STYLE, structured=True).values([STATE]))


@needs_vllm
def test_without_the_form_the_same_model_cannot_be_read(url):
    with pytest.raises(CriticError, match="the last line must be"):
        asyncio.run(JudgeCritic(model(url, max_completion_tokens=50), style=STYLE).values([STATE]))
