"""A judge on a real vLLM server. The shipped policy cannot judge, so its answers show how a judge fails."""

from __future__ import annotations

import asyncio

import pytest
from langchain_openai import ChatOpenAI

from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.judge.style import JudgeStyle, stated_number
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CriticError
from amc_agents.types import Step, Task, Trajectory
from amc_agents.usage import Meter, metering

pytestmark = pytest.mark.service

# "Goal:" is a word of the shipped model's tokenizer; other words take many tokens of its short context.
READ = stated_number("Goal:", whole=True)
SHORT = JudgeStyle("short", "Goal: 0 or 9.", "{trajectory}\nGoal?", READ, (0.0, 9.0))
SECONDS = 59
STATE = Trajectory(
    Task("t", "Crafting commands:\ncraft 1 oak gate using 2 clay, 1 silk\n\nGoal: craft oak gate."),
    (Step("get 2 clay", "Got 2 clay", thought="oak gate using 2 clay, 1 silk"),),
)


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "any")


def values(critic, *trajectories):
    return asyncio.run(critic.values(trajectories))


def test_two_answers_without_a_number_are_an_error(policy_url):
    critic = JudgeCritic("openai:policy", style=SHORT, base_url=f"{policy_url}/v1", timeout=SECONDS, max_tokens=24)
    meter = Meter()
    with (
        metering(meter),
        pytest.raises(CriticError, match=r"cannot be read \(asked 2 times\).* The answer was "),
    ):
        values(critic, STATE)
    assert list(meter.by_model()["critic"]) == ["openai:policy"]
    used = meter.read()["critic"]
    assert (used.calls, used.missing) == (2, 0)
    assert used.input_tokens > 100
    assert 2 <= used.output_tokens <= 48


def test_an_answer_that_the_server_constrains_is_read(policy_url):
    forced = {"structured_outputs": {"regex": "Goal: [0-9]"}}
    model = ChatOpenAI(
        model="policy", base_url=f"{policy_url}/v1", timeout=SECONDS, temperature=0, max_completion_tokens=8,
        extra_body=forced,
    )  # fmt: skip
    critic = JudgeCritic(model, style=SHORT, returns=(0.0, 0.9))
    scores = values(critic, STATE, STATE.prefix(0), STATE)
    assert scores[0] == scores[2]
    assert all(round(10 * score, 6) in range(10) for score in scores)
    assert (critic.usage.calls, critic.usage.missing) == (2, 0)


@pytest.mark.parametrize("kind", ["judge", "foa"])
def test_its_string_names_a_model_of_the_server(policy_url, kind):
    options = f"base_url={policy_url}/v1&timeout={SECONDS}"
    # A judge's answers are bounded by default, by more tokens than this model's context has.
    with pytest.raises(CriticError, match="max_completion_tokens=2048 cannot be greater than max_model_len"):
        values(parse_critic(f"{kind}:openai:policy?{options}"), STATE)
    with pytest.raises(CriticError, match=r"cannot be read|maximum context length"):
        values(parse_critic(f"{kind}:openai:policy?{options}&max_tokens=24"), STATE)
    with pytest.raises(CriticError, match=r"404.*`unknown` does not exist"):
        values(parse_critic(f"{kind}:openai:unknown?{options}"), STATE)
