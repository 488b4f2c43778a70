"""A server that answers 429 slows a population down instead of killing its particles."""

from __future__ import annotations

import asyncio
import threading
import time

import httpx
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from openai import RateLimitError

from amc_agents import AmcSettings, Budget, actor_critic_model
from amc_agents.concurrency import gather
from amc_agents.concurrency.gather import RateGate, rate_limit_of, retry_after_of
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.server.client import ModelServer
from amc_agents.errors import QuorumLost
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.worlds import ReturnSoFar, say, start, sum_world
from tests.scripted_http import scripted_server


class Server:
    """Answers each request with a digit, or with 429 while more than `most` requests came within `window` seconds."""

    def __init__(self, most=3, window=0.1, headers=None, content="Action: 3"):
        self.most, self.window, self.content = most, window, content
        self.headers = {"Retry-After-Ms": str(int(1000 * window))} if headers is None else headers
        self.times, self.refused, self.answered, self.lock = [], 0, 0, threading.Lock()

    def answer(self, body):
        now = time.monotonic()
        with self.lock:
            self.times = [at for at in self.times if now - at < self.window]
            if len(self.times) >= self.most:
                self.refused += 1
                return 429, {"error": {"message": "slow down", "type": "requests"}}, self.headers
            self.times.append(now)
            self.answered += 1
        return 200, self.completion()

    def completion(self):
        message = {"role": "assistant", "content": self.content}
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}

    def model(self, url, **settings):
        return ChatOpenAI(model="m", base_url=f"{url}/v1", api_key="none", max_retries=0, **settings)


ROUTE = "POST /v1/chat/completions"


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_population_slows_down_and_no_particle_dies(asynchronous):
    server = Server()
    with scripted_server({ROUTE: server.answer}) as running:
        graph = amc(text_agent(server.model(running.url)), ReturnSoFar(), environment=sum_world, n_particles=8,
                    resample=AtSteps(2), seed=1)  # fmt: skip
        run = asyncio.run(graph.arun(start())) if asynchronous else graph.run(start())
    run.close()
    assert not any(run.population.failed)
    assert not any("failed" in note for note in run.notes)
    assert server.answered == 8 * 4
    assert 0 < server.refused
    assert run.usage["policy"].calls == server.answered + server.refused


@pytest.mark.thorough  # a server, waits; quick: test_a_particle_that_was_not_refused_waits_too
def test_all_particles_wait_for_the_same_gate():
    """After the first refusal, nothing is sent for as long as the server asked."""
    server = Server(most=9)
    sent, refused_at = [], []
    together = threading.Barrier(5, timeout=30)

    def answer(body):
        sent.append(time.monotonic())
        if len(sent) <= 5:
            together.wait()
            refused_at.append(time.monotonic())
            return 429, {"error": {"message": "slow down", "type": "requests"}}, {"Retry-After-Ms": "200"}
        return server.answer(body)

    with scripted_server({ROUTE: answer}) as running:
        graph = amc(text_agent(server.model(running.url)), ReturnSoFar(), environment=lambda state: sum_world(state, 1),
                    n_particles=5, resample=Never())  # fmt: skip
        graph.run(start()).close()
    assert len(sent) == 10
    assert min(sent[5:]) - min(refused_at) >= 0.2


def test_a_server_that_never_recovers_is_an_error(monkeypatch):
    monkeypatch.setattr(gather, "PATIENCE_S", 0.3)
    server = Server(most=0, headers={"Retry-After-Ms": "50"})
    with scripted_server({ROUTE: server.answer}) as running:
        graph = amc(text_agent(server.model(running.url)), environment=sum_world, n_particles=2, resample=Never())
        before = time.monotonic()
        with pytest.raises(QuorumLost, match="RateLimitError"):
            graph.run(start())
    assert time.monotonic() - before > 0.2


def test_a_wait_that_is_too_long_is_an_error_at_once():
    server = Server(most=0, headers={"Retry-After": "3600"})
    with scripted_server({ROUTE: server.answer}) as running:
        graph = amc(text_agent(server.model(running.url)), environment=sum_world, n_particles=2, resample=Never())
        with pytest.raises(QuorumLost):
            graph.run(start())
    assert server.refused == 2


def refusal(headers=None):
    request = httpx.Request("POST", "http://host")
    response = httpx.Response(429, request=request, headers=headers or {"Retry-After-Ms": "10"})
    return RateLimitError("slow down", response=response, body=None)


def test_a_particle_that_was_not_refused_waits_too():
    sent, refused_at = [], []
    second, refused = asyncio.Event(), asyncio.Event()

    class Once(ScriptedChatModel):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            sent.append(time.monotonic())
            if len(sent) == 1:
                await second.wait()
                refused_at.append(time.monotonic())
                refused.set()
                raise refusal({"Retry-After-Ms": "200"})
            second.set()
            await refused.wait()
            for _ in range(100):  # Turns of the loop, in which the refusal closes the gate.
                await asyncio.sleep(0)
            return self._result(messages)

    agent = text_agent(Once(respond=lambda messages: "Action: 1"))
    graph = amc(agent, environment=sum_world, n_particles=2, resample=Never())
    asyncio.run(graph.arun(start())).close()
    assert min(sent[2:]) - refused_at[0] >= 0.2


class Refusing(ScriptedChatModel):
    """Refuses every other request."""

    refusals: list[int]

    def _result(self, messages):
        if len(self.refusals) % 2 == 0:
            self.refusals.append(1)
            raise refusal()
        self.refusals.append(0)
        return super()._result(messages)


def test_a_tool_that_acts_is_not_run_again_and_a_subgraph_goes_on_where_it_was_refused():
    said = []

    @tool
    def note(text: str) -> str:
        """Note."""
        said.append(text)
        return "noted"

    def respond(messages):
        if sum(isinstance(message, AIMessage) for message in messages) >= 2:
            return "done"
        return AIMessage("", tool_calls=[{"name": "note", "args": {"text": "x"}, "id": str(len(messages))}])

    inner = create_agent(Refusing(respond=respond, refusals=[]), [note])
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    graph = amc(outer.compile(), "uniform", step_after="inner", stateless_tools=True, n_particles=2, resample=Never())
    run = graph.run(start())
    assert not any(run.population.failed)
    assert said == ["x"] * 4, "two notes of each particle"


def test_a_world_tool_that_calls_a_model_is_not_repeated():
    asked = Refusing(respond=lambda messages: "1", refusals=[])

    async def think(state):
        await asked.ainvoke("hello")
        return {"messages": [AIMessage("said")]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_edge(START, "think")
    agent = amc(graph.compile(), "uniform", step_after="think", tools={"think": "world"}, n_particles=3,
                environment=sum_world, settings=AmcSettings(rewards=False, quorum=1), resample=Never())  # fmt: skip
    run = agent.run(start())
    assert 0 < sum(run.population.failed) < 3
    assert say.name == "say"


def test_candidates_wait_for_each_other():
    model = Refusing(respond=lambda messages: "Action: go", refusals=[])
    answer = asyncio.run(actor_critic_model(model, "uniform", k=4).ainvoke("hello"))
    assert answer.text == "Action: go"
    assert model.refusals.count(0) == 4
    assert actor_critic_model(model, "uniform", k=4).invoke("hello").text == "Action: go"


def test_a_judge_waits():
    judge = JudgeCritic(Refusing(respond=lambda messages: "Score: 0.5", refusals=[]))
    graph = amc(text_agent(ScriptedChatModel(respond=lambda messages: "Action: 1")), judge, environment=sum_world,
                n_particles=3, resample=AtSteps(2), select="weight")  # fmt: skip
    assert graph.run(start()).best.done


@pytest.mark.thorough
async def test_a_critics_server_holds_all_its_requests_back():
    sent = []

    def answer(request):
        sent.append(time.monotonic())
        if len(sent) <= 2:
            return httpx.Response(429, headers={"Retry-After": "1"})
        return httpx.Response(200, json={})

    server = ModelServer("http://host", transport=httpx.MockTransport(answer), max_concurrent=1)
    await server.post("/classify", [{}] * 3)
    assert sent[1] - sent[0] >= 0.9
    assert sent[2] - sent[1] >= 0.9
    assert len(sent) == 5


@pytest.mark.thorough  # a server; quick: test_candidates_wait_for_each_other
def test_a_budget_and_a_rate_limit_together():
    server = Server(most=4)
    budget = Budget(calls=40)
    with scripted_server({ROUTE: server.answer}) as running:
        graph = amc(text_agent(server.model(running.url)), ReturnSoFar(), environment=sum_world, n_particles=6,
                    resample=AtSteps(2), seed=1, budget=budget)  # fmt: skip
        run = graph.run(start())
    run.close()
    assert run.best.done
    assert server.answered + server.refused == budget.spent["calls"] <= 40


# --- the gate -----------------------------------------------------------------------------------------------


def test_refusals_are_recognised_by_their_status():
    assert rate_limit_of(refusal()) == {"retry-after": 0.01}
    assert rate_limit_of(refusal({"x": "y"})) == {}
    assert rate_limit_of(ValueError("429")) is None
    wrapped = RuntimeError("it failed")
    wrapped.__cause__ = refusal()
    assert rate_limit_of(wrapped) == {"retry-after": 0.01}
    quota = refusal()
    quota.code = "insufficient_quota"
    assert rate_limit_of(quota) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({"retry-after": "2"}, 2.0), ({"retry-after": "0.5"}, 0.5), ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
     ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0), ({"retry-after": "soon"}, None), ({}, None),
     ({"retry-after": "-3"}, None), ({"retry-after": "inf"}, None)],
)  # fmt: skip
def test_headers(headers, seconds):
    assert retry_after_of(headers) == seconds


def test_pauses_double_and_one_wave_counts_once(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("amc_agents.concurrency.gather.time.monotonic", lambda: clock[0])
    monkeypatch.setattr("amc_agents.concurrency.gather.random.uniform", lambda low, high: high)
    gate = RateGate()
    assert gate.wait_s == 0
    assert gate.close()
    assert gate.close()
    assert gate.wait_s == 1.5, "a second, and half of it at random"
    clock[0] += 1
    gate.close()
    assert gate.wait_s == 3
    gate.succeeded()
    clock[0] += 2
    gate.close()
    assert gate.wait_s == 1.5
    gate.close(10.0)
    assert gate.wait_s == 15
    clock[0] += 301
    assert not gate.close()


def test_a_long_wait_says_what_is_waited_for_every_30_s(monkeypatch, caplog):
    clock = [100.0]
    monkeypatch.setattr("amc_agents.concurrency.gather.time.monotonic", lambda: clock[0])
    gate, times = RateGate(), []
    while gate.close():
        if caplog.records[len(times) :]:
            times.append(round(clock[0] - 100))
        clock[0] += gate.opens_in_s
    assert times == [3, 63, 123, 183, 243]
    assert "(429), for 123 s now: the next request is made in 60 s, and after 300 s" in caplog.messages[2]
    assert caplog.records[2].event == "rate_limit.waits"
