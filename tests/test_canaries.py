"""Keys planted in the environment, the configuration, URLs, headers and prompts: where they may and may not appear.

A key belongs into the request to its own server, and nowhere else. A key that a user writes into a prompt is content:
transcripts, datasets and checkpoints keep prompts as they are, and everything for people masks it.
"""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from amc_agents import AtSteps, amc, parse_critic, quoting
from amc_agents.config import Config
from amc_agents.critics.server.client import ModelServer
from amc_agents.errors import AmcError, ConfigurationError
from amc_agents.operations.importing.storing import personal_data
from amc_agents.runtime.text_agent import text_agent
from amc_agents.testing import ScriptedChatModel
from amc_agents.types import Step, Task, TimeStep, Trajectory
from tests.arguments import arguments
from tests.scripted_http import scripted_server

POLICY_KEY, CRITIC_KEY, HEADER_KEY = (f"sk-{who}-canary-0123456789abcdef" for who in ("policy", "critic", "header"))
KEYS = (POLICY_KEY, CRITIC_KEY, HEADER_KEY)
CHAT = "POST /v1/chat/completions"
CONFIG, OTHER = ({"configurable": {"thread_id": thread}} for thread in "tu")
INPUT = {"messages": [HumanMessage("Walk.")]}
STEP = Step(action="go", observation="on", thought="", reward=0.0)
PATH = Trajectory(Task("t", "Walk."), (STEP,))


@pytest.fixture(autouse=True)
def _fresh_secrets(monkeypatch):
    monkeypatch.setattr(quoting, "_secrets", set())
    monkeypatch.setenv("CRITIC_CANARY", CRITIC_KEY)


class Walk:
    """Three steps. The last observation of a world may repeat what it was told."""

    def __init__(self, taken=0, last="there"):
        self.taken, self.last = taken, last

    async def reset(self, task):
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        self.taken += 1
        return TimeStep.termination(self.last, 1.0) if self.taken == 3 else TimeStep.transition("on", 0.0)

    async def fork(self, seed):
        return Walk(self.taken, self.last)

    async def close(self):
        pass


def completion(text):
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
    return {"id": "c", "created": 1, "model": "m", "object": "chat.completion", "choices": [choice], "usage": usage}


def answering(body):
    """A step for the policy, a score for the judge."""
    asks_for_score = "judge" in body["model"]
    return 200, completion("Score: 0.5" if asks_for_score else "Thought: on\nAction: go")


def refusing(body):
    """A provider that repeats keys in its error."""
    return 401, {"error": {"message": f"Incorrect API key provided: {POLICY_KEY} {CRITIC_KEY} {HEADER_KEY}"}}


def policy(server):
    headers = {"X-Own-Key": HEADER_KEY}
    return ChatOpenAI(
        model="policy", base_url=f"{server.url}/v1", api_key=POLICY_KEY, default_headers=headers, max_retries=0
    )


def judge(server):
    return f"judge:openai:judge?base_url={server.url}/v1&key_env=CRITIC_CANARY"


def population(model, critic=None, last="there", **settings):
    return amc(
        text_agent(model), critic, **arguments(n_particles=2, resample=AtSteps(1), horizon=4, seed=0, rewards=False,
        environment=lambda state: (Walk(last=last), Task("t", "Walk.")), **settings),
    )  # fmt: skip


def shown(error):
    """All that a traceback shows, with the causes."""
    return "".join(traceback.format_exception(error))


def planted_in(*texts):
    return [key for key in KEYS if any(key in str(text) for text in texts)]


async def test_a_run_shows_no_key_to_anybody_but_its_server(caplog):
    saver = InMemorySaver()
    with (
        caplog.at_level(logging.DEBUG, "amc_agents"),
        scripted_server({"POST /v1/chat/completions": answering}) as server,
    ):
        graph = population(policy(server), judge(server), checkpointer=saver)
        run = await graph.arun(INPUT, CONFIG)
        events = [
            event async for event in graph.astream(INPUT, {"configurable": {"thread_id": "u"}}, stream_mode="custom")
        ]
    sent = {header for _, _, headers in server.asked for header in headers.values()}
    assert {f"Bearer {POLICY_KEY}", f"Bearer {CRITIC_KEY}", HEADER_KEY} <= sent, "the canaries were used"
    points = [repr(point) for point in saver.list(CONFIG)]
    kept = b"".join(repr(content).encode() for content in (saver.storage, saver.writes, saver.blobs)).decode()
    assert points
    assert (
        planted_in(repr(run), run, json.dumps(run.as_plain()), run.to_html(), events, caplog.text, points, kept) == []
    )


async def test_errors_of_a_provider_that_repeats_keys_show_none(caplog):
    with (
        caplog.at_level(logging.DEBUG, "amc_agents"),
        scripted_server({"POST /v1/chat/completions": refusing}) as server,
    ):
        steps = ScriptedChatModel(respond=lambda messages: "Thought: on\nAction: go")
        with pytest.raises(AmcError) as failure:
            await population(steps, judge(server)).arun(INPUT)
    assert server.asked
    assert CRITIC_KEY not in shown(failure.value)
    assert CRITIC_KEY not in caplog.text


@pytest.mark.parametrize("spec", ["vllm:{}?key_env=CRITIC_CANARY", "verdict:{}?model=m&key_env=CRITIC_CANARY"])
async def test_errors_of_a_critics_server_show_no_key(spec):
    routes = {
        f"{verb} {path}": refusing for verb in ("GET", "POST") for path in ("/v1/models", "/tokenize", "/classify")
    }
    with scripted_server(routes) as server:
        critic: Any = parse_critic(spec.format(server.url))
        ask = critic.values if hasattr(critic, "values") else critic.log_odds
        with pytest.raises(AmcError) as failure:
            await ask([PATH])
    assert any(f"Bearer {CRITIC_KEY}" in headers.values() for _, _, headers in server.asked)
    assert CRITIC_KEY not in shown(failure.value)


@pytest.mark.parametrize(
    "table",
    [
        f'[policy]\nmodel = "openai:m"\nbase_url = "http://me:{POLICY_KEY}@host/v1"\n',
        f'[policy]\nmodel = "openai:m"\nbase_url = "http://host/v1?api_key={POLICY_KEY}"\n',
        f'[policy]\nmodel = "openai:m"\napi_key = "{POLICY_KEY}"\n',
        f'[critic]\nspec = "vllm:http://me:{POLICY_KEY}@host:8000"\n',
    ],
)
def test_a_configuration_with_a_key_is_refused_without_quoting_it(tmp_path, table):
    path = tmp_path / "amc.toml"
    path.write_text(table)
    with pytest.raises(ConfigurationError) as refused:
        Config.load(path)
    assert planted_in(shown(refused.value)) == []


@pytest.mark.parametrize("url", [f"http://me:{CRITIC_KEY}@host:1", f"http://host:1?api_key={CRITIC_KEY}"])
def test_a_url_with_a_key_is_refused_without_quoting_it(url):
    with pytest.raises(ConfigurationError) as refused:
        ModelServer(url)
    assert planted_in(shown(refused.value)) == []


def test_a_client_holds_its_key_as_a_secret():
    server = ModelServer("http://host:1", api_key=CRITIC_KEY)
    assert planted_in(vars(server), repr(server)) == []


async def test_a_key_in_a_prompt_stays_in_the_transcript_and_is_masked_for_people():
    quoting.keep_secret(CRITIC_KEY)  # as of any key that the process uses
    steps = ScriptedChatModel(respond=lambda messages: f"Thought: on\nAction: login {CRITIC_KEY}")
    run = await population(steps, lambda paths: np.zeros(len(paths)), last=f"wrong key {CRITIC_KEY}").arun(INPUT)
    assert CRITIC_KEY in run.best.steps[-1].observation, "a critic is scored on what the agent has seen"
    assert CRITIC_KEY not in run.to_html()


@pytest.mark.parametrize(
    "key", [POLICY_KEY, "ghp_" + "a1" * 18, "hf_" + "a1" * 17, "AKIA" + "A1" * 8, "xoxb-1234567890-a"]
)
def test_imported_logs_that_hold_a_key_are_reported(key):
    assert personal_data([f"export KEY={key}"]) == {"API key"}


@pytest.mark.parametrize("text", ["sk-short", "risk-" + "a" * 30, "hf_model", "the AKIA prefix"])
def test_other_words_are_no_keys(text):
    assert personal_data([text]) == set()
