"""A stub for every dialect, which refuses any request that its server would refuse."""

import json

import httpx
import pytest
from amc_agents_agentgym import (
    DIALECTS,
    AgentGymError,
    AgentGymServer,
    AgentGymTask,
    AgentGymTimeout,
    AgentGymWorld,
    agentgym_world,
)
from amc_agents_agentgym.spec import spec_of

from amc_agents.envs.registry import world, worlds
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Task

REQUESTS = {
    "textcraft": {"create": [{}], "reset": {"id", "data_idx"}, "step": {"id", "action"}, "close": {"id"}},
    "sciworld": {"create": [None], "reset": {"id", "data_idx"}, "step": {"id", "action"}, "close": {"id"}},
    "babyai": {"create": [None], "reset": {"id", "data_idx"}, "step": {"id", "action"}, "close": {"id"}},
    "alfworld": {"create": [None], "reset": {"id", "game", "world_type"}, "step": {"id", "action"}},
    "webshop": {"create": [None], "reset": {"env_idx", "session_id"}, "step": {"env_idx", "action"}},
    "weather": {"create": [{"id": 0}], "reset": {"env_idx", "id"}, "step": {"env_idx", "action"}},
    "movie": {"create": [{"id": 0}], "reset": {"env_idx", "id"}, "step": {"env_idx", "action"}},
    "searchqa": {
        "create": [{"id": 0}], "reset": {"env_idx", "id"}, "step": {"env_idx", "action"}, "close": {"env_idx"}
    },
}  # fmt: skip
"""Dialect -> the bodies that its server takes."""
BARE = ("webshop", "weather", "movie", "searchqa")
"""Servers that answer a creation by a bare number."""
PAID = {"textcraft": [0, 0, 1], "sciworld": [20, 20, 100], "babyai": [0, 0.5, 1], "alfworld": [0, 0, 1],
        "webshop": [0.3, 0.3, 1], "weather": [0, 1, 1], "movie": [0.25, 0.5, 1], "searchqa": [0, 0, 1]}  # fmt: skip
"""Dialect -> what its server reports in a game of three steps."""
EARNED = {"textcraft": [0, 0, 1], "sciworld": [0.2, 0, 0.8], "babyai": [0, 0.5, 0.5], "alfworld": [0, 0, 1],
          "webshop": [0, 0, 1], "weather": [0, 1, 0], "movie": [0.25, 0.25, 0.5], "searchqa": [0, 0, 1]}  # fmt: skip


class Stub:
    """A server on which every game takes three steps."""

    def __init__(self, name):
        self.name, self.key = name, DIALECTS[name].id_field
        self.steps, self.tasks, self.closed, self.actions = {}, {}, [], []
        self.created = 0
        self.paid = PAID[name]

    def handle(self, request):
        path = request.url.path[1:]
        if request.method == "GET":
            assert (self.name, path) == ("webshop", "available_actions")
            first = self.steps[int(request.url.params["env_idx"])] == 0
            return httpx.Response(200, json={"has_search_bar": first, "clickables": ["search" if first else "Buy Now"]})
        body = json.loads(request.content) if request.content else None
        expected = REQUESTS[self.name].get(path)
        if expected is None or (body not in expected if path == "create" else set(body) != expected):
            return httpx.Response(404 if expected is None else 422, json={"detail": f"{path} {body}"})
        return httpx.Response(200, json=getattr(self, path)(body))

    def create(self, body):
        self.created += 1
        self.steps[self.created] = None
        return self.created if self.name in BARE else {"id": self.created}

    def reset(self, body):
        number = body[self.key]
        self.steps[number], self.tasks[number] = 0, body[DIALECTS[self.name].task_field]
        text = f"Task {self.tasks[number]}"
        match self.name:
            case "webshop":
                return [text, None]
            case "weather" | "movie" | "searchqa":
                return text
            case "sciworld":
                return {"task_description": text, "observation": "A room.", "reward": 0, "score": 0, "done": False}
            case "alfworld":
                return {"id": number, "observation": text, "available_actions": ["look", "go to bed 1"]}
        return {"id": number, "observation": text, "reward": 0, "score": 0, "done": False}

    def step(self, body):
        number = body[self.key]
        if self.steps.get(number) in (None, 3):
            return {"error": f"The task with environment {number} has finished."}
        self.actions.append(body["action"])
        self.steps[number] += 1
        step = self.steps[number]
        text, paid, done = f"Step {step} of task {self.tasks[number]}", self.paid[step - 1], step == 3
        match self.name:
            case "webshop":
                return {"state": text, "reward": paid, "done": done, "info": None}
            case "sciworld" | "babyai":
                return {"observation": text, "reward": -99, "score": paid, "done": done}
            case "alfworld":
                return {"observation": text, "reward": paid, "done": done, "available_actions": ["look"]}
        return {"observation": text, "reward": paid, "done": done}

    def close(self, body):
        self.closed.append(body[self.key])
        return True


def serving(name, handle=None):
    stub = Stub(name)
    transport = httpx.MockTransport(handle or stub.handle)
    return stub, AgentGymServer(DIALECTS[name], "http://stub:1", transport=transport)


TASK = Task("t", "x", AgentGymTask(7))


@pytest.mark.parametrize("name", DIALECTS)
async def test_every_dialect_keeps_the_contract(name):
    stub, server = serving(name)
    await check_environment(spec_of(server).make, TASK, ["look", "go", "finish"])
    assert set(stub.tasks.values()) == {7}


@pytest.mark.parametrize("name", DIALECTS)
async def test_rewards_become_those_of_each_step(name):
    _, server = serving(name)
    made = AgentGymWorld(server)
    await made.reset(TASK)
    answers = [await made.step(f"act {step}") for step in range(3)]
    assert [answer.reward for answer in answers] == pytest.approx(EARNED[name])
    assert [answer.terminated for answer in answers] == [False, False, True]
    again = await made.reset(TASK)
    assert again.reward == 0.0
    assert (await made.step("act")).reward == pytest.approx(EARNED[name][0]), "a reset restarts the sum"
    await made.close()


@pytest.mark.parametrize("name", DIALECTS)
async def test_environments_are_closed_or_used_again(name):
    stub, server = serving(name)
    for _ in range(3):
        made = AgentGymWorld(server)
        await made.reset(TASK)
        await made.close()
        await made.close()
    assert stub.closed == ([1, 2, 3] if DIALECTS[name].closes else [])
    assert stub.created == (3 if DIALECTS[name].closes else 1)


async def test_an_environment_whose_request_broke_off_is_not_used_again():
    stub = Stub("webshop")

    def handle(request):
        if request.url.path == "/step":
            raise httpx.ReadTimeout("slow", request=request)
        return stub.handle(request)

    _, server = serving("webshop", handle)
    for _ in range(2):
        made = AgentGymWorld(server)
        await made.reset(TASK)
        with pytest.raises(AgentGymTimeout, match="http://stub:1/step: no answer within 60 s"):
            await made.step("search[x]")
        await made.close()
    assert stub.created == 2


async def test_a_negative_score_of_scienceworld_is_a_failure_that_ends_the_episode():
    stub, server = serving("sciworld")
    stub.paid = [10, -100, -100]
    made = AgentGymWorld(server)
    await made.reset(TASK)
    answers = [await made.step("focus on door") for _ in range(2)]
    assert sum(answer.reward for answer in answers) == pytest.approx(-1.0)
    assert answers[1].terminated
    with pytest.raises(EnvironmentStateError, match="after the end"):
        await made.step("look around")


async def test_possible_actions_are_part_of_the_observation():
    _, server = serving("webshop")
    made = AgentGymWorld(server)
    first = await made.reset(TASK)
    assert first.observation.endswith("Task 7\nAvailable actions: search[KEYWORDS], click[search]")
    assert (await made.step("search[x]")).observation == "Step 1 of task 7\nAvailable actions: click[Buy Now]"
    _, server = serving("alfworld")
    made = AgentGymWorld(server)
    assert (await made.reset(TASK)).observation.endswith("Available actions: look, go to bed 1")
    assert (await made.step("look")).observation.endswith("Available actions: look")


async def test_tools_get_their_actions_in_the_form_that_their_server_parses():
    stub, server = serving("weather")
    made = AgentGymWorld(server)
    await made.reset(TASK)
    await made.step("finish with Action Input: {}")
    assert stub.actions == ["Action: finish with Action Input: {}"]


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(200, json={"error": "no game 7"}), "/reset: the server reported an error: no game 7"),
        (httpx.Response(500, text="Internal Server Error"), "/reset: HTTP 500, expected 200: Internal Server Error"),
        (httpx.Response(200, text="<html>"), "/reset: expected JSON, got <html>"),
        (httpx.Response(200, json={"id": 1}), "/reset: expected a first observation, got ''.*alfworld server"),
    ],
)
async def test_wrong_answers_are_errors_that_name_the_request(response, message):
    stub = Stub("alfworld")
    _, server = serving("alfworld", lambda sent: response if sent.url.path == "/reset" else stub.handle(sent))
    made = AgentGymWorld(server)
    with pytest.raises(AgentGymError, match=message):
        await made.reset(TASK)
    await made.close()


async def test_the_wrong_server_is_noticed():
    stub = Stub("searchqa")
    made = AgentGymWorld(AgentGymServer(DIALECTS["webshop"], "http://x", transport=httpx.MockTransport(stub.handle)))
    with pytest.raises(AgentGymError, match="/create: HTTP 422"):
        await made.reset(TASK)
    await made.close()


def test_tasks_of_a_split_have_the_servers_numbers_and_its_first_observation():
    stub, server = serving("searchqa")
    spec = spec_of(server, splits={"test": [5, 9, 11]})
    tasks = list(spec.tasks(2, "test", 1))
    assert [task.payload.number for task in tasks] == [9, 11]
    assert [task.id for task in tasks] == ["agentgym-searchqa/9", "agentgym-searchqa/11"]
    assert tasks[0].instruction == f"{DIALECTS['searchqa'].rules}\nTask 9"
    assert stub.closed == [1, 2]
    for split, n_tasks in [("test", 4), ("valid", 1)]:
        with pytest.raises(ConfigurationError, match=r"expected tasks of test \(3 tasks\)"):
            list(spec.tasks(n_tasks, split, 0))


def test_a_url_comes_from_the_environment(monkeypatch):
    server = AgentGymServer(DIALECTS["webshop"])
    monkeypatch.delenv("AMC_AGENTGYM_WEBSHOP", raising=False)
    with pytest.raises(ConfigurationError, match="pass url=, or set AMC_AGENTGYM_WEBSHOP"):
        list(agentgym_world("webshop").tasks(1, "test", 0))
    monkeypatch.setenv("AMC_AGENTGYM_WEBSHOP", "http://shop:36001/")
    assert server.url == "http://shop:36001"
    with pytest.raises(ConfigurationError, match="unknown dialect 'shop'; available: textcraft, "):
        agentgym_world("shop")


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_is_registered(name):
    if f"agentgym-{name}" in worlds():  # Where this package is installed, not only on the path.
        assert world(f"agentgym-{name}").horizon == DIALECTS[name].horizon
