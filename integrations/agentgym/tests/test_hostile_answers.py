"""Answers of a broken or hostile server: each is read, or refused as an `AgentGymError`."""

import asyncio
import json
from contextlib import suppress

import httpx
import pytest
from amc_agents_agentgym import DIALECTS, AgentGymError, AgentGymServer, AgentGymTask, AgentGymWorld

from amc_agents.types import Task

OPENING = {"id": 1, "observation": "a", "task_description": "b", "reward": 0, "score": 0, "state": "c",
           "available_actions": ["go"], "has_search_bar": True, "clickables": ["x"], "done": False}  # fmt: skip
TASK = Task("t", "", AgentGymTask(1))


async def play(dialect, answers):
    """Reset and take a step, with these answers to /create, /reset and /step."""

    def respond(request):
        return httpx.Response(200, content=answers.get(request.url.path, json.dumps(OPENING).encode()))

    world = AgentGymWorld(AgentGymServer(DIALECTS[dialect], "http://host", transport=httpx.MockTransport(respond)))
    try:
        await world.reset(TASK)
        return (await world.step("go")).reward
    finally:
        await world.close()


WRONG = (None, True, -1, float("nan"), 10**400, "x", [1], {"a": None})
BODIES = [b"", b"[" * 5000, b"\xff", b"1" * 5000, *(json.dumps(value).encode() for value in WRONG)]
BODIES += [json.dumps({**OPENING, key: value}).encode() for key in OPENING for value in WRONG]
BODIES += [json.dumps({k: v for k, v in OPENING.items() if k != key}).encode() for key in OPENING]


@pytest.mark.parametrize("dialect", ["sciworld", "alfworld", "webshop"])
@pytest.mark.parametrize("path", ["/create", "/reset", "/step", "/available_actions"])
def test_any_answer_is_read_or_refused_by_name(dialect, path):
    with asyncio.Runner() as loop:
        for body in BODIES:
            with suppress(AgentGymError):
                loop.run(play(dialect, {path: body}))


@pytest.mark.parametrize("wrong", ["much", None, [], float("nan"), float("inf"), 10**400])
def test_a_reward_that_is_no_number_is_refused(wrong):
    for path in ("/reset", "/step"):
        body = json.dumps({**OPENING, "score": wrong}).encode()
        with pytest.raises(AgentGymError, match="reward"):
            asyncio.run(play("sciworld", {path: body}))


def test_actions_that_are_no_text_are_refused():
    for wrong in ([1], "go", {"a": 1}):
        with pytest.raises(AgentGymError, match="a list of actions in text"):
            asyncio.run(play("alfworld", {"/reset": json.dumps({**OPENING, "available_actions": wrong}).encode()}))
