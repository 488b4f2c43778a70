"""Every way in which the library makes a request is reserved under a budget, and charged what is reported."""

from __future__ import annotations

import asyncio
from functools import partial

import httpx
import numpy as np
import pytest
from langchain_core.embeddings import FakeEmbeddings
from langchain_core.language_models import FakeListLLM
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.store.memory import InMemoryStore

from amc_agents import (
    ActorCritic,
    Budget,
    BudgetExhausted,
    Usage,
    actor_critic_model,
    critique_refine_model,
    parse_critic,
)
from amc_agents.budget import Bound
from amc_agents.critics.goal.embeddings import LangChainEmbeddings, ServerEmbeddings
from amc_agents.critics.judge.critic import JudgeCritic
from amc_agents.critics.server.client import ModelServer
from amc_agents.critics.value.pooling import VLLMCritic
from amc_agents.envs.crafting import generate_task
from amc_agents.errors import CriticError, UnboundedRequest
from amc_agents.lac.text_scoring import EmbeddedScorer, Text
from amc_agents.models.embedded import EmbeddedChatModel
from amc_agents.runtime.budget_keeper import bounded, prompt_bound
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Trajectory
from amc_agents.usage import Meter, metering
from tests.critics.value.fake_vllm import FakeVLLM, folder, trajectory
from tests.pnlc.pnlc_agents import Reaches, mind
from tests.psrl import exploring_agents, test_ids_middleware
from tests.scripted_http import scripted_server
from tests.variants import variants

__all__ = ["folder"]

TASK = generate_task(7, "examples", optimal_steps=(6, 8))
REPORT = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}
both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Reporting(ScriptedChatModel):
    """A model that reports 5 tokens, with a limit of 10 per answer."""

    model: str = "small"
    max_tokens: int | None = 10
    temperature: float = 1.0


def reporting(text="Action: go", **settings):
    return Reporting(respond=lambda messages: AIMessage(text, usage_metadata=REPORT), **settings)


def ask(model, sync, budget, text="hello", **call):
    with bounded(budget):
        return model.invoke(text, **call) if sync else asyncio.run(model.ainvoke(text, **call))


# --- LangChain's models -------------------------------------------------------------------------------------


@both_ways
def test_a_chat_model(sync):
    budget = Budget(tokens=120, calls=2)
    ask(reporting(), sync, budget)
    assert budget.spent == {"tokens": 5, "calls": 1}
    ask(reporting(), sync, budget)
    with pytest.raises(BudgetExhausted, match="2 of 2 calls"):
        ask(reporting(), sync, budget)


@both_ways
def test_a_stream(sync):
    budget = Budget(calls=1)
    with bounded(budget):
        if sync:
            [*reporting().stream("hello")]
        else:
            asyncio.run(drained(reporting()))
    assert budget.left == {"calls": 0}


async def drained(model):
    return [chunk async for chunk in model.astream("hello")]


def test_a_plain_text_model_needs_a_limit_too():
    model = FakeListLLM(responses=["hi"])
    with pytest.raises(UnboundedRequest, match="has no max_tokens"):
        ask(model, True, Budget(tokens=100))
    budget = Budget(calls=1)
    ask(model, True, budget)
    assert budget.left == {"calls": 0}


@both_ways
def test_the_limit_of_a_call_precedes_that_of_the_model(sync):
    with pytest.raises(BudgetExhausted):
        ask(reporting(), sync, Budget(tokens=50), max_tokens=1000)
    budget = Budget(tokens=1000)
    ask(reporting(max_tokens=None), sync, budget, max_tokens=10)
    assert budget.spent == {"tokens": 5}


def fail(error, messages):
    return error


@both_ways
def test_a_failed_request_costs_its_bound_unless_a_server_answered(sync):
    class Refused(Exception):
        status_code = 500

    for error, tokens in ((ValueError("lost"), 47), (Refused("no"), 0)):
        budget = Budget(tokens=100, calls=5)
        with pytest.raises(type(error)):
            ask(Reporting(respond=partial(fail, error)), sync, budget)
        assert budget.spent == {"tokens": tokens, "calls": 1}


def test_an_openai_client_is_bounded_by_its_own_names():
    def completion(body):
        choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
        return 200, {"id": "1", "object": "chat.completion", "created": 1, "model": "s", "choices": [choice],
                     "usage": usage}  # fmt: skip

    with scripted_server({"POST /v1/chat/completions": completion}) as server:
        given = {"model": "s", "base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0}
        for settings in ({"max_tokens": 10}, {"max_completion_tokens": 10}):
            budget = Budget(tokens=1000)
            ask(ChatOpenAI(**given, **settings), True, budget)
            assert budget.spent == {"tokens": 10}
            with pytest.raises(BudgetExhausted, match="may need 67 tokens"):
                ask(ChatOpenAI(**given, **settings, n=3), True, Budget(tokens=60))
        n_asked = len(server.asked)
        with pytest.raises(UnboundedRequest):
            ask(ChatOpenAI(**given), True, Budget(tokens=1000))
        assert len(server.asked) == n_asked == 2


def test_the_bound_of_a_prompt_exceeds_the_tokens_of_any_tokenizer_of_bytes():
    call = AIMessage("", tool_calls=[{"name": "look", "args": {"where": "häuser"}, "id": "1"}])
    messages = [SystemMessage("Sei kurz."), HumanMessage([{"type": "text", "text": "été"}]), call,
                ToolMessage("gefunden", tool_call_id="1")]  # fmt: skip
    texts = ["Sei kurz.", "été", "look", '{"where": "häuser"}', "gefunden"]
    assert prompt_bound(messages) > sum(len(text.encode()) for text in texts) + 4 * len(messages)


def test_the_embedded_model_never_reads_more_than_its_bound():
    model = EmbeddedChatModel(seed=1)
    for text in ("", "a", TASK.instruction, "craft " * 40):
        budget = Budget(tokens=10**6)
        reported = ask(model, True, budget, text).usage_metadata
        assert budget.spent["tokens"] == reported["total_tokens"]
        assert reported["input_tokens"] <= prompt_bound([HumanMessage(text)])
        assert reported["output_tokens"] <= model.max_tokens
    with pytest.raises(BudgetExhausted, match="may need"):
        ask(model, True, Budget(tokens=200), n=4)


@both_ways
def test_a_model_that_only_calls_models_is_not_charged_itself(sync):
    budget = Budget(calls=3)
    ask(actor_critic_model(reporting(), "uniform", k=3), sync, budget)
    assert budget.left == {"calls": 0}


# --- LAC, PNLC, PSRL and IDS --------------------------------------------------------------------------------


@both_ways
def test_a_conversation_of_lac_decisions(sync):
    budget = Budget(tokens=10_000, calls=8)
    model = actor_critic_model(reporting(), "uniform", k=3, budget=budget)
    ask(model, sync, None)
    ask(model, sync, None)
    assert budget.spent == {"tokens": 30, "calls": 6}
    with pytest.raises(BudgetExhausted):
        ask(model, sync, None)
    assert budget.spent["calls"] <= 8


@pytest.mark.thorough
@both_ways
def test_lac_with_the_embedded_models(sync):
    budget = Budget(tokens=100_000)
    meter = Meter()
    model = actor_critic_model(EmbeddedChatModel(), "verdict:embedded:crafting", k=3, depth=2, budget=budget)
    with metering(meter):
        answer = ask(model, sync, None, TASK.instruction)
    used = answer.response_metadata["lac"]["usage"]["policy"]
    others = sum(usage.tokens for role, usage in meter.read().items() if role != "policy")
    assert others > 0
    assert budget.spent["tokens"] == used["input_tokens"] + used["output_tokens"] + others


def test_the_middleware_takes_the_budget():
    from langchain.agents import create_agent

    budget = Budget(calls=3)
    agent = create_agent(reporting("done"), [], middleware=[ActorCritic("uniform", k=3, budget=budget)])
    agent.invoke({"messages": [("user", "hi")]})
    with pytest.raises(BudgetExhausted):
        agent.invoke({"messages": [("user", "hi")]})


@both_ways
def test_pnlc(sync):
    budget = Budget(calls=3)
    model = critique_refine_model(mind(lambda messages: "Thought: I go left.\nAction: left"), Reaches(), budget=budget)
    with pytest.raises(BudgetExhausted):
        ask(model, sync, None)
    assert budget.left == {"calls": 0}


@both_ways
def test_psrl_bounds_its_roles_and_its_policy(sync):
    free, seen = Budget(calls=1000), Budget(calls=2)
    given = exploring_agents.GIVEN

    def run(budget):
        agent = exploring_agents.an_agent(InMemoryStore(), budget=budget)
        return agent.invoke(given) if sync else asyncio.run(agent.ainvoke(given))

    run(free)
    assert free.spent["calls"] == 5, "a draw, three turns and an update"
    with pytest.raises(BudgetExhausted):
        run(seen)
    assert seen.left == {"calls": 0}


@both_ways
def test_ids_bounds_its_estimates_and_the_model(sync):
    budget = Budget(calls=1)
    agent = test_ids_middleware.an_agent(InMemoryStore(), budget=budget)
    given = test_ids_middleware.GIVEN
    with pytest.raises(BudgetExhausted):
        agent.invoke(given) if sync else asyncio.run(agent.ainvoke(given))
    assert budget.spent["calls"] == 1


# --- critics ------------------------------------------------------------------------------------------------


async def test_a_judge():
    trajectories = [Trajectory(TASK)]
    budget = Budget(tokens=10_000, calls=1)
    judge = JudgeCritic(reporting("Score: 0.5"), retries=0)
    with bounded(budget):
        await judge.values(trajectories)
        assert budget.spent == {"tokens": 5, "calls": 1}
        with pytest.raises(BudgetExhausted):
            await judge.values(trajectories)
    with bounded(Budget(tokens=10_000)), pytest.raises(UnboundedRequest):
        await JudgeCritic(reporting("Score: 0.5", max_tokens=None), retries=0).values(trajectories)


async def test_a_critic_behind_a_server(folder):
    states = [trajectory(1, of) for of in range(5)]
    async with FakeVLLM() as server:
        critic, meter, budget = VLLMCritic(server.url, checkpoint=folder), Meter(), Budget(tokens=3000)
        with bounded(budget), metering(meter):
            await critic.values(states)
        assert budget.spent["tokens"] >= meter.read()["critic"].tokens > 0
        n_asked = len(server.batches())
        with bounded(Budget(tokens=20)), pytest.raises(BudgetExhausted):
            await critic.values(states)
        assert len(server.batches()) == n_asked


async def test_requests_to_a_model_server_are_reserved_side_by_side():
    most, now = [0], [0]

    async def answer(request):
        now[0] += 1
        most[0] = max(most[0], now[0])
        await asyncio.sleep(0.01)
        now[0] -= 1
        return httpx.Response(200, json={"usage": {"prompt_tokens": 10, "completion_tokens": 0}})

    server = ModelServer("http://host", transport=httpx.MockTransport(answer))
    budget = Budget(tokens=100)
    with bounded(budget):
        await server.post("/classify", [{}] * 4, [Bound("m", 40, 0)] * 4)
    assert most == [2], "two bounds of 40 fit at a time"
    assert budget.spent == {"tokens": 40}
    with bounded(budget), pytest.raises(BudgetExhausted):
        await server.post("/classify", [{}] * 4, [Bound("m", 40, 0)] * 4)
    assert budget.spent["tokens"] <= 100
    await server.post("/tokenize", [{}])


async def test_an_error_of_a_model_server_costs_the_bound():
    server = ModelServer("http://host", transport=httpx.MockTransport(lambda _: httpx.Response(400)), retry_for=0)
    budget = Budget(tokens=100)
    with bounded(budget), pytest.raises(CriticError):
        await server.post("/classify", [{}], [Bound("m", 40, 0)])
    assert budget.spent == {"tokens": 40}


@variants("spec", ["embedded:crafting", "verdict:embedded:crafting"])
async def test_a_critic_in_this_process(spec):
    from amc_agents.critics.uses import for_amc

    critic, meter = for_amc(parse_critic(spec), beta=1.0), Meter()
    trajectories = [Trajectory(TASK), Trajectory(TASK)]
    await critic.values(trajectories)
    budget = Budget(tokens=100_000)
    with bounded(budget), metering(meter):
        await critic.values(trajectories)
    assert budget.spent["tokens"] == meter.read()["critic"].tokens > 0
    with bounded(Budget(tokens=5)), pytest.raises(BudgetExhausted):
        await critic.values(trajectories)


async def test_a_scorer_of_texts_in_this_process():
    scorer, meter, budget = EmbeddedScorer.load(), Meter(), Budget(tokens=100_000)
    messages, texts = [{"role": "user", "content": TASK.instruction}], [Text("", "Action: inventory")]
    with bounded(budget), metering(meter):
        await scorer.log_likelihoods(messages, texts, 1.0)
    assert budget.spent["tokens"] == meter.read()["policy"].tokens > 0
    with bounded(Budget(tokens=5)), pytest.raises(BudgetExhausted):
        await scorer.log_likelihoods(messages, texts, 1.0)


async def test_embeddings():
    body = {"data": [{"index": 0, "embedding": [0.0, 1.0]}], "usage": {"prompt_tokens": 2}}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, json=body))
    budget = Budget(tokens=100)
    with bounded(budget):
        await ServerEmbeddings(ModelServer("http://host", transport=transport), "m").embed(["hello"])
        assert budget.spent == {"tokens": 2}
        await LangChainEmbeddings(FakeEmbeddings(size=3)).embed(["hello"])
        assert budget.spent == {"tokens": 2 + 9}, "no usage is reported, so the bound is charged"
        with pytest.raises(BudgetExhausted):
            await LangChainEmbeddings(FakeEmbeddings(size=3)).embed(["x" * 200])


@tool
def nothing() -> str:
    """Do nothing."""
    return ""


def test_bound_tools_count_as_prompt():
    bare, with_tools = Budget(tokens=1000), Budget(tokens=1000)
    model = ChatOpenAI(
        model="s", api_key="none", base_url="http://127.0.0.1:9/v1", max_retries=0, max_completion_tokens=1
    )
    with bounded(bare), pytest.raises(Exception, match="Connection error"):
        model.invoke("hi")
    assert bare.spent["tokens"] < 100
    with bounded(with_tools), pytest.raises(BudgetExhausted):
        model.bind_tools([nothing]).invoke("hi")
    assert Usage(1, 2, 3).tokens == 5
    assert np.isfinite(bare.left["tokens"])
