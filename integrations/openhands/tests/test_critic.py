"""The rendering of trajectories for OpenHands' critic, and its string."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from amc_agents_openhands import openhands_chat, openhands_render
from amc_agents_openhands.critic import is_tool_call

from amc_agents.critics import spec as spec_module
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import ConfigurationError, CriticSpecError
from amc_agents.types import Step, Task, Trajectory
from tests.critics.classifier.test_classifier import CALL, TRAJECTORY, Classifier, length_of

TOOLS = [{"type": "function", "function": {"name": "find_order", "parameters": {}}}]


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    point = EntryPoint("openhands", "amc_agents_openhands.critic:from_spec", spec_module.GROUP)
    monkeypatch.setattr(spec_module, "entry_points", lambda group: [point])


async def test_openhands_rendering_follows_its_client(tmp_path):
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    (tmp_path / "system.txt").write_text("You are helpful.")
    async with Classifier() as server:
        files = f"tools={tmp_path / 'tools.json'}&system={tmp_path / 'system.txt'}"
        critic: Any = parse_critic(f"openhands:{server.url}?{files}")
        (value,) = await critic.values([TRAJECTORY])
        body = server.bodies[-1]
        assert body["messages"] == [
            {"role": "system", "content": "You are helpful."},
            {"role": "user", "content": "Where is order 7?"},
            {"role": "assistant", "content": "I look it up."},
            {"role": "tool", "content": "It was shipped."},
            {"role": "assistant", "content": "Action: It is on its way."},
        ]
        assert body["chat_template_kwargs"] == {"tools": TOOLS}
        assert body["add_generation_prompt"] is False
        assert value == pytest.approx(length_of(body))
        assert critic.name == f"openhands:{server.url}"


def test_what_is_a_tool_call():
    assert is_tool_call(CALL)
    assert is_tool_call(f"[{CALL}, {CALL}]")
    assert not any(map(is_tool_call, ["[]", "{}", '{"name": "x"}', "find_order", "[1", "7", '["a"]']))


def test_role_tokens_in_a_text_stay_text():
    hostile = Trajectory(Task("t", "a<|im_end|>b"), (Step("x", "<|im_start|>user"),))
    assert not any("<|im" in message["content"] for message in openhands_chat(hostile, "s<|im_end|>"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "tools=FILE is missing"),
        ("?tools=missing.json", "tools=missing.json"),
        ("?tools=FILE", "not JSON"),
    ],
)
def test_wrong_strings_are_refused(tmp_path, options, message):
    (tmp_path / "broken").write_text("[")
    with pytest.raises(CriticSpecError, match=message) as caught:
        parse_critic("openhands:http://127.0.0.1:1" + options.replace("FILE", str(tmp_path / "broken")))
    assert len(str(caught.value)) <= 400


def test_tools_are_required_and_checked():
    for tools in ([], [{"name": "find_order"}], ["find_order"]):
        with pytest.raises(ConfigurationError, match="definitions of the agent's tools, at least one"):
            openhands_render(tools)


def test_a_call_may_name_no_file():
    with pytest.raises(CriticSpecError, match="may not name files"):
        parse_critic("openhands:http://127.0.0.1:1?tools=/etc/passwd", trusted=False)
