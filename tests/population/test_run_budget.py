"""`amc(budget=)`: a run never exceeds its budget, and its end still gives an answer where one can be had."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from amc_agents import AmcSettings, Budget, BudgetExhausted, Usage
from amc_agents.budget import Bound, claim, spenders
from amc_agents.config import Config
from amc_agents.errors import CriticError, QuorumLost, UnboundedRequest
from amc_agents.population.wrap import amc
from amc_agents.prices import Price
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, digits, number_agent, start, sum_world
from tests.scripted_http import scripted_server

PROMPT, ANSWER = 7, 5
"""Tokens of each request to the server."""


class Server:
    """An OpenAI-compatible server that counts the tokens that it bills, and how many requests it has at a time."""

    def __init__(self, latency=0.0):
        self.billed, self.requests, self.latency, self.lock = 0, 0, latency, threading.Lock()
        self.url = ""
        self.rng = random.Random(1)

    def answer(self, body):
        with self.lock:
            self.requests += 1
            self.billed += PROMPT + ANSWER
            digit, pause = self.rng.randrange(10), self.rng.random() * self.latency
        time.sleep(pause)
        message = {"role": "assistant", "content": f"Action: {digit}"}
        usage = {"prompt_tokens": PROMPT, "completion_tokens": ANSWER, "total_tokens": PROMPT + ANSWER}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "small", "choices": [choice],
                     "usage": usage}  # fmt: skip


@pytest.fixture
def server():
    counting = Server(latency=0.01)
    with scripted_server({"POST /v1/chat/completions": counting.answer}) as running:
        counting.url = running.url
        yield counting


def openai_agent(server, **settings):
    model = ChatOpenAI(model="small", base_url=f"{server.url}/v1", api_key="none", max_retries=0,
                       **{"max_tokens": 20, **settings})  # fmt: skip
    return text_agent(model)


def counted_agent(delay=0.0, **settings):
    """An agent whose model reports 10 tokens per answer and may write 20."""
    return text_agent(Counted(respond=digits, delay=delay, **settings))


class Counted(ScriptedChatModel):
    model: str = "small"
    max_tokens: int | None = 20

    def _result(self, messages):
        result = super()._result(messages)
        usage = UsageMetadata(input_tokens=4, output_tokens=6, total_tokens=10)
        message = result.generations[0].message
        assert isinstance(message, AIMessage)
        message.usage_metadata = usage
        return result


def wrapped(budget, agent=None, **settings):
    given = {"environment": sum_world, "n_particles": 6, "resample": AtSteps(2), "beta": 1.0, "seed": 3,
             **settings}  # fmt: skip
    return amc(agent or counted_agent(), given.pop("critic", ReturnSoFar()), **arguments(budget=budget, **given))


def usage_and_end(graph):
    """The usage of the policy in a run, and what ended it."""
    try:
        run = asyncio.run(graph.arun(start()))
    except BudgetExhausted as error:
        return error.usage.get("policy", Usage()), "exhausted"
    return run.usage["policy"], run.stopped_by


# --- never exceeded -----------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("limits", [{"calls": 9}, {"tokens": 1500}, {"calls": 17, "tokens": 4000}])
def test_a_real_server_never_bills_more_than_the_budget(server, limits, asynchronous):
    budget = Budget(**limits)
    graph = wrapped(budget, openai_agent(server))
    run = asyncio.run(graph.arun(start())) if asynchronous else graph.run(start())
    assert server.requests <= limits.get("calls", math.inf)
    assert server.billed <= limits.get("tokens", math.inf)
    used = run.usage["policy"]
    assert (used.calls, used.tokens) == (server.requests, server.billed)
    assert budget.spent.get("calls", used.calls) == used.calls
    assert budget.spent.get("tokens", used.tokens) == used.tokens
    assert run.best.done
    run.close()
    assert SumWorld.open == 0


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_random_latencies_and_sizes_never_exceed_a_budget(seed):
    rng = np.random.default_rng(seed)
    billed = [0]

    class Sized(Counted):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            await asyncio.sleep(float(rng.exponential(0.002)))
            result = super()._result(messages)
            written = int(rng.integers(1, 21))
            billed[0] += 4 + written
            assert billed[0] <= limit
            result.generations[0].message.usage_metadata = UsageMetadata(
                input_tokens=4, output_tokens=written, total_tokens=4 + written
            )
            return result

    limit = int(rng.integers(400, 3000))
    budget = Budget(tokens=limit)
    graph = wrapped(budget, text_agent(Sized(respond=digits)), n_particles=int(rng.integers(1, 9)),
                    resample=[AtSteps(2), EveryStep(), Never()][seed % 3])  # fmt: skip
    usage, stopped_by = usage_and_end(graph)
    assert usage.tokens == billed[0]
    assert stopped_by in (None, "budget", "exhausted")
    assert budget.spent["tokens"] == billed[0] <= limit


@pytest.mark.thorough
def test_dollars_are_limited_by_the_prices_of_the_budget_or_the_configuration(tmp_path):
    path = tmp_path / "amc.toml"
    path.write_text("[prices.small]\ninput = 1000.0\noutput = 1000.0\n")
    for prices, config in (({"small": Price(1000.0, 1000.0)}, Config()), (None, path)):
        budget = Budget(dollars=1.0, prices=prices)
        run = wrapped(budget, counted_agent(), config=config, n_particles=30).run(start())
        assert run.stopped_by == "budget"
        assert budget.spent["dollars"] == pytest.approx(run.usage["policy"].tokens / 1000)
        assert budget.spent["dollars"] <= 1.0


def test_a_missing_price_or_max_tokens_is_an_error_before_the_first_call():
    asked = []

    def respond(messages):
        asked.append(1)
        return digits(messages)

    unlimited = text_agent(Counted(respond=respond, max_tokens=None))
    with pytest.raises(UnboundedRequest, match="has no max_tokens"):
        wrapped(Budget(tokens=1000), unlimited).run(start())
    with pytest.raises(UnboundedRequest, match="the model 'counted:small' has no price"):
        wrapped(Budget(dollars=1.0), text_agent(Counted(respond=respond))).run(start())
    assert asked == []
    with wrapped(Budget(calls=50), unlimited).run(start()) as run:
        assert run.stopped_by is None
    assert SumWorld.open == 0


def test_a_request_made_synchronously_inside_a_coroutine_is_bounded_too():
    model = Counted(respond=lambda messages: "hi")

    async def talk(state):
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("talk", talk)
    graph.add_edge(START, "talk")
    budget = Budget(calls=3)
    many = amc(
        graph.compile(),
        "uniform",
        stateless_tools=True,
        step_after="talk",
        n_particles=5,
        settings=AmcSettings(quorum=1),
        budget=budget,
    )
    try:
        used = many.run(start()).usage["policy"].calls
    except (QuorumLost, BudgetExhausted):
        used = int(budget.spent["calls"])
    assert used <= 3


# --- the end ------------------------------------------------------------------------------------------------


def test_a_budget_that_is_not_reached_changes_nothing():
    free, roomy = wrapped(None).run(start()), wrapped(Budget(tokens=10**6, calls=1000, seconds=600)).run(start())
    assert free.log_evidence == roomy.log_evidence
    assert [step.action for step in free.best.steps] == [step.action for step in roomy.best.steps]
    assert (free.stopped_by, roomy.stopped_by) == (None, None)
    assert free.usage == roomy.usage
    assert free.config["budget"] is None
    assert roomy.config["budget"] == {"tokens": 10**6, "calls": 1000, "seconds": 600}


@pytest.mark.thorough
@pytest.mark.parametrize("select", ["return", "value", "weight", "sample"])
@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_at_its_end_the_best_finished_answer_comes_back(select, delay):
    budget = Budget(calls=14)
    run = wrapped(budget, counted_agent(delay), select=select).run(start())
    assert run.stopped_by == "budget"
    assert run.best.done
    assert math.isnan(run.log_evidence)
    finished = [trajectory for trajectory in run.population.trajectories if trajectory.done]
    assert run.best in finished
    if select == "return":
        assert run.best.return_ == max(trajectory.return_ for trajectory in finished)
    note = next(note for note in run.notes if note.startswith("the budget ended: <Budget: 0 of 14 calls left>"))
    assert f"the best of {len(finished)} finished trajectories" in note
    assert run.usage["policy"].calls == 14
    run.close()
    assert SumWorld.open == 0


@pytest.mark.thorough
@pytest.mark.parametrize("calls", range(4, 26))
def test_enough_is_kept_to_finish_a_particle(calls):
    """A particle takes 4 calls; whatever the number of particles and the budget, from 8 calls an answer exists."""
    graph = wrapped(Budget(calls=calls), n_particles=12)
    if calls >= 8:
        run = graph.run(start())
        assert run.best.done
        assert run.usage["policy"].calls == calls
    else:
        assert usage_and_end(graph)[0].calls == calls


def test_where_no_particle_can_finish_the_error_has_what_there_is():
    with pytest.raises(BudgetExhausted, match="3 of 3 calls are spent; none of 6 particles had finished") as caught:
        wrapped(Budget(calls=3)).run(start())
    assert len(caught.value.trajectories) == 6
    assert sum(len(trajectory.steps) for trajectory in caught.value.trajectories) == 3
    assert caught.value.usage["policy"] == Usage(3, 12, 18)
    assert caught.value.spent == {"calls": 3}
    assert SumWorld.open == 0


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [True, False])
def test_seconds_end_a_run(asynchronous):
    budget = Budget(seconds=0.4)
    graph = wrapped(budget, number_agent(delay=0.25), environment=lambda state: (SumWorld(2), TASK))
    with pytest.raises(BudgetExhausted, match="seconds are spent; none of 6 particles had finished"):
        asyncio.run(graph.arun(start())) if asynchronous else graph.run(start())
    with pytest.raises(BudgetExhausted):
        graph.run(start())
    slow = wrapped(Budget(seconds=0.5), slow_later(0.2), environment=lambda state: (SumWorld(2), TASK))
    longer = asyncio.run(slow.arun(start()))
    assert longer.stopped_by == "budget"
    assert longer.best.done


def slow_later(delay):
    """The first two particles answer at once, the others take long."""
    calls = []

    class Slow(ScriptedChatModel):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            calls.append(1)
            if len(calls) > 8:
                await asyncio.sleep(2)
            return self._result(messages)

    return text_agent(Slow(respond=digits))


@pytest.mark.thorough  # waits; quick: the limits of time in test_time_limits.py
def test_a_shorter_run_timeout_is_not_taken_for_the_budget():
    graph = wrapped(Budget(seconds=60), slow_later(0.2), environment=lambda state: (SumWorld(2), TASK), run_timeout=0.4)
    assert asyncio.run(graph.arun(start())).stopped_by == "run_timeout"


def test_stop_at_is_told_apart():
    assert wrapped(Budget(calls=1000), stop_at=1.0).run(start()).stopped_by in ("stop_at", None)


# --- critics ------------------------------------------------------------------------------------------------


class Billed(ReturnSoFar):
    """A critic whose call costs tokens, and which can predict whole returns."""

    predicts = "return"

    def __init__(self, tokens):
        super().__init__()
        self.tokens, self.calls = tokens, 0

    async def values(self, trajectories):
        async with claim([Bound("critic", self.tokens, 0)]) as claimed:
            self.calls += 1
            claimed.settle(Usage(1, self.tokens, 0))
        return np.array([trajectory.return_ for trajectory in trajectories])


def test_the_critic_spends_from_the_same_budget():
    budget, critic = Budget(tokens=2000), Billed(100)
    run = wrapped(budget, critic=critic).run(start())
    assert critic.calls == 1
    assert budget.spent["tokens"] == run.usage["policy"].tokens + 100


def test_a_weighing_that_does_not_fit_ends_the_run_after_a_particle_has_finished():
    budget, critic = Budget(tokens=1500), Billed(1450)
    run = wrapped(budget, critic=critic).run(start())
    assert critic.calls == 0
    assert run.stopped_by == "budget"
    assert run.best.done
    assert budget.spent["tokens"] <= 1500


def test_a_weighing_of_the_finished_particles_is_kept_in_a_run_without_rewards():
    weighed = []

    class Last(Billed):
        async def values(self, trajectories):
            weighed.append([trajectory.done for trajectory in trajectories])
            return await super().values(trajectories)

    budget, critic = Budget(tokens=1700), Last(300)
    run = wrapped(budget, critic=critic, hide_rewards=True, n_particles=30).run(start())
    assert run.stopped_by == "budget"
    assert budget.spent["tokens"] <= 1700
    assert all(weighed[-1]), "the last weighing compares the finished particles"
    assert np.isfinite(run.population.values[run.best_index])


# --- conversations, nesting, tools --------------------------------------------------------------------------


def test_a_conversation_shares_a_budget():
    budget = Budget(calls=30)
    graph = wrapped(budget, n_particles=4)
    calls = []
    for _ in range(3):
        calls.append(usage_and_end(graph)[0].calls)
    assert calls == [16, 14, 0] or sum(calls) == 30
    assert budget.left == {"calls": 0}


def test_runs_side_by_side_share_a_budget():
    budget = Budget(calls=40)
    graph = wrapped(budget, counted_agent(0.001), n_particles=4)

    async def both():
        return await asyncio.gather(*(graph.arun(start()) for _ in range(4)), return_exceptions=True)

    runs = asyncio.run(both())
    used = sum(run.usage["policy"].calls for run in runs)
    assert used == budget.spent["calls"] <= 40


@pytest.mark.thorough  # quick: test_a_budget_is_not_reset
def test_a_restored_run_has_not_more_budget(tmp_path):
    """A run that broke off after a durable point goes on, in the same process or in another."""
    broken = []

    class Breaks(ReturnSoFar):
        async def values(self, trajectories):
            if len(broken) == 1:
                broken.append(1)
                raise RuntimeError("the power failed")
            broken.append(1)
            return await super().values(trajectories)

    saver, thread = InMemorySaver(), RunnableConfig(configurable={"thread_id": "1"})
    settings = {"critic": Breaks(), "resample": EveryStep(), "checkpointer": saver}
    first = Budget(calls=100)
    with pytest.raises(CriticError):
        wrapped(first, **settings).invoke(start(), thread)
    assert first.spent["calls"] == 12, "two steps of six particles"
    second = Budget(calls=100)
    wrapped(second, **settings).invoke(None, thread)
    assert second.spent["calls"] == 6 + 18, "the step before the point, and three after it"
    broken.clear()
    again, other = Budget(calls=100), RunnableConfig(configurable={"thread_id": "2"})
    with pytest.raises(CriticError):
        wrapped(again, **settings).invoke(start(), other)
    wrapped(again, **settings).invoke(None, other)
    assert again.spent["calls"] == 12 + 18, "the same object has counted the lost step already"


def test_a_tool_that_calls_a_model_is_bounded():
    inner = Counted(respond=lambda messages: "well")

    @tool
    def think(question: str) -> str:
        """Think."""
        return inner.invoke(question).text

    def respond(messages):
        if sum(isinstance(message, AIMessage) for message in messages) >= 2:
            return "done"
        return AIMessage("", tool_calls=[{"name": "think", "args": {"question": "why"}, "id": str(len(messages))}])

    agent = create_agent(Counted(respond=respond), [think])
    budget = Budget(calls=17)
    run = amc(agent, "uniform", stateless_tools=True, n_particles=5, resample=Never(), budget=budget).run(start())
    assert run.stopped_by == "budget"
    assert run.usage["policy"].calls == budget.spent["calls"] <= 17


def test_a_run_inside_a_run_spends_from_both():
    inner = wrapped(Budget(calls=100), n_particles=2)
    seen = []

    async def ask(state):
        seen.append(len(spenders()))
        run = await inner.arun(start())
        return {"messages": [AIMessage(str(run.best.return_))]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    outer = Budget(calls=20)
    run = amc(graph.compile(), "uniform", stateless_tools=True, step_after="ask", n_particles=2, resample=Never(),
              budget=outer).run(start())  # fmt: skip
    assert outer.spent == {"calls": run.usage["policy"].calls} == {"calls": 16}
    assert seen == [1, 1]


def test_a_step_timeout_does_not_hold_its_reservation():
    hanging = [True]

    class Hangs(Counted):
        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            if hanging:
                hanging.clear()
                await asyncio.Event().wait()
            return self._result(messages)

    budget = Budget(tokens=1000)
    graph = wrapped(budget, text_agent(Hangs(respond=digits)), n_particles=3, resample=Never(), step_timeout=0.3)
    run = asyncio.run(graph.arun(start()))
    assert sum(run.population.failed) == 1
    assert run.usage["policy"].estimated == 1, "the cancelled request may have been billed"
    assert budget.spent["tokens"] == run.usage["policy"].tokens
    assert budget.spent["tokens"] <= 1000


def test_streams_are_bounded_too(server):
    budget = Budget(calls=9)
    for _ in wrapped(budget, counted_agent()).stream(start(), stream_mode=["messages", "values"]):
        pass
    assert budget.spent["calls"] == 9
    assert json.dumps(budget.limits) == '{"calls": 9}'
