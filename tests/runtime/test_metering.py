"""What the policy's meter reads from the answers of real clients, which talk to a server in the shapes of OpenAI's."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from uuid import uuid4

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.language_models import FakeListLLM
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import Generation, LLMResult
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph

from amc_agents.population.wrap import amc
from amc_agents.runtime.metering import PolicyMeter, counting_requests
from amc_agents.runtime.text_agent import text_agent
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.usage import Meter, Usage
from tests.population.worlds import start, sum_world
from tests.scripted_http import scripted_server

ANSWERED = "small-2026-01-02"


def completion(body):
    """A whole answer, or a stream of chunks; the usage is that of all n candidates."""
    n = body.get("n") or 1
    usage = {"prompt_tokens": 6, "completion_tokens": 4 * n, "total_tokens": 6 + 4 * n,
             "prompt_tokens_details": {"cached_tokens": 2}}  # fmt: skip
    common = {"id": "c1", "created": 1, "model": ANSWERED}
    if not body.get("stream"):
        choices = [
            {"index": i, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"} for i in range(n)
        ]
        return 200, {**common, "object": "chat.completion", "choices": choices, "usage": usage}
    chunks = [
        {"index": i, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": reason}
        for reason in (None, "stop")
        for i in range(n)
    ]
    sent = [{**common, "object": "chat.completion.chunk", "choices": [chunk]} for chunk in chunks]
    if (body.get("stream_options") or {}).get("include_usage"):
        sent.append({**common, "object": "chat.completion.chunk", "choices": [], "usage": usage})
    return 200, "".join(f"data: {json.dumps(one)}\n\n" for one in sent) + "data: [DONE]\n\n"


@pytest.fixture(scope="module")
def server():
    with scripted_server({"POST /v1/chat/completions": completion}) as running:
        yield running


@pytest.fixture
def meter():
    return Meter()


@pytest.fixture
def metered(meter):
    return {"callbacks": [PolicyMeter(meter)]}


def openai(server, **settings):
    return {"base_url": f"{server.url}/v1", "api_key": "none", "max_retries": 0, **settings}


async def test_the_name_is_that_of_the_answer_with_its_provider(server, meter, metered):
    await ChatOpenAI(model="small", **openai(server)).ainvoke("hello", metered)
    assert meter.by_model() == {"policy": {f"openai:{ANSWERED}": Usage(1, 6, 4, 2)}}


async def test_n_candidates_are_counted_once(server, meter):
    model = ChatOpenAI(model="small", n=3, **openai(server))
    answer = await model.agenerate([[HumanMessage("hello")]], callbacks=[PolicyMeter(meter)])
    reported = [one.message.usage_metadata["output_tokens"] for one in answer.generations[0]]
    assert reported == [12, 12, 12], "each candidate carries the usage of all"
    assert meter.by_model() == {"policy": {f"openai:{ANSWERED}": Usage(1, 6, 12, 2)}}


def test_a_sync_batch_counts_each_of_its_requests(server, meter, metered):
    ChatOpenAI(model="small", n=2, **openai(server)).batch(["one", "two", "three"], metered)
    assert meter.by_model() == {"policy": {f"openai:{ANSWERED}": Usage(3, 18, 24, 6)}}


@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_with_usage_is_counted_under_its_plain_name(server, meter, metered, n):
    model = ChatOpenAI(model="small", n=n, stream_usage=True, **openai(server))
    joined = [chunk async for chunk in model.astream("hello", metered)]
    assert len(joined) > 1
    assert meter.by_model() == {"policy": {f"openai:{ANSWERED}": Usage(1, 6, 4 * n, 2)}}


async def test_a_stream_without_usage_is_a_request_with_missing_usage(server, meter, metered):
    async for _ in ChatOpenAI(model="small", **openai(server)).astream("hello", metered):
        pass
    assert meter.by_model() == {"policy": {f"openai:{ANSWERED}": Usage(1, missing=1)}}


async def test_models_of_init_chat_model_are_counted_separately(server, meter, metered):
    await init_chat_model("openai:small", n=2, **openai(server)).ainvoke("hello", metered)
    chosen = init_chat_model(configurable_fields=("model", "model_provider"), **openai(server))
    await chosen.ainvoke("hello", {**metered, "configurable": {"model": "small", "model_provider": "openai"}})
    assert meter.by_model() == {"policy": {f"openai:{ANSWERED}": Usage(2, 12, 12, 4)}}


async def test_a_failed_request_is_counted_for_the_model_that_was_asked(meter, metered):
    with scripted_server({"POST /v1/chat/completions": lambda _: (400, {"error": {"message": "no"}})}) as server:
        with pytest.raises(Exception, match="no"):
            await ChatOpenAI(model="small", **openai(server)).ainvoke("hello", metered)
    assert meter.by_model() == {"policy": {"openai:small": Usage(1, missing=1)}}


async def test_an_answer_that_does_not_say_its_model_is_that_of_the_model_asked(meter, metered):
    usage = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6}
    model = ScriptedChatModel(respond=lambda _: AIMessage("hi", usage_metadata=usage))
    await model.ainvoke("hello", metered)
    assert meter.by_model() == {"policy": {"": Usage(1, 5, 1)}}, "a script has no name"

    class Named(ScriptedChatModel):
        model_name: str = "script"

    await Named(respond=model.respond).ainvoke("hello", metered)
    assert meter.by_model()["policy"]["named:script"] == Usage(1, 5, 1)


async def test_more_cached_tokens_than_were_read_count_as_those_that_were_read(meter, metered):
    usage = {"input_tokens": 5, "output_tokens": 1, "total_tokens": 6, "input_token_details": {"cache_read": 9}}
    await ScriptedChatModel(respond=lambda _: AIMessage("hi", usage_metadata=usage)).ainvoke("hello", metered)
    assert meter.read() == {"policy": Usage(1, 5, 1, 5)}


async def test_a_model_of_plain_text_is_counted(meter, metered):
    class Reports(FakeListLLM):
        async def _agenerate(self, prompts, *args, **kwargs):
            tokens = {"prompt_tokens": 7, "completion_tokens": 2}
            return LLMResult(generations=[[Generation(text="hi")]], llm_output={"token_usage": tokens})

    await Reports(responses=[]).ainvoke("hello", metered)
    await FakeListLLM(responses=["hi"]).ainvoke("hello", metered)
    assert meter.read() == {"policy": Usage(2, 7, 2, 0, 1)}


async def test_nothing_is_remembered_of_requests_that_are_over(server, meter):
    handler = PolicyMeter(meter)
    await ChatOpenAI(model="small", **openai(server)).abatch(["a", "b"], {"callbacks": [handler]})
    assert handler._requests == {}


async def test_a_request_without_an_end_is_counted_once(meter):
    """LangChain reports no end of a request that is cancelled; that of one in a thread may come later."""
    handler, ids = PolicyMeter(meter), [uuid4(), uuid4()]
    asked = {"metadata": {"ls_provider": "openai", "ls_model_name": "small"}, "invocation_params": {}}
    for run_id in ids:
        handler.on_chat_model_start({}, [[]], run_id=run_id, **asked)
    for _ in range(2):
        handler.count_abandoned()
    handler.on_llm_end(LLMResult(generations=[]), run_id=ids[0])
    assert meter.by_model() == {"policy": {"openai:small": Usage(2, missing=2)}}


async def test_requests_of_a_cancelled_run_are_counted():
    meter, started, n_particles = Meter(), asyncio.Event(), 3
    asked: list[Any] = []

    class Hangs(ScriptedChatModel):
        async def _agenerate(self, messages, *arguments, **options):
            asked.append(messages)
            if len(asked) == n_particles:
                started.set()
            await asyncio.Event().wait()

    graph = amc(text_agent(Hangs(respond=str)), environment=sum_world, n_particles=n_particles)
    with counting_requests(PolicyMeter(meter)):
        run = asyncio.ensure_future(graph.arun(start()))
    await started.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert meter.read() == {"policy": Usage(calls=n_particles, missing=n_particles)}


HARMLESS: dict[str, Any] = {"step_after": "act", "stateless_tools": True}


def in_a_node(model, act):
    """An agent with a single step, whose node calls `act(model, config)`."""
    builder = StateGraph(MessagesState)

    async def awaited(state, config):
        await act(model, config)
        return {"messages": [AIMessage("Action: 1")]}

    def called(state, config):
        act(model, config)
        return {"messages": [AIMessage("Action: 1")]}

    builder.add_node("act", awaited if asyncio.iscoroutinefunction(act) else called)
    builder.add_edge(START, "act")
    return builder.compile()


async def awaits(model, config):
    await model.ainvoke("hello")


async def awaits_a_chain(model, config):
    await (RunnableLambda(str.upper) | model | str).ainvoke("hello", config)


async def drops_callbacks(model, config):
    await model.ainvoke("hello", {"callbacks": []})


async def asks_a_thread(model, config):
    await asyncio.to_thread(model.invoke, "hello")


async def asks_a_subgraph(model, config):
    await in_a_node(model, awaits).ainvoke({"messages": []})


async def streams(model, config):
    assert [chunk async for chunk in model.astream("hello")]


def calls(model, config):
    model.invoke("hello", config)


def batches(model, config):
    model.batch(["hello"])


async def nests_amc(model, config):
    await amc(in_a_node(model, awaits), n_particles=1, critic="uniform", **HARMLESS).ainvoke({"messages": []}, config)


@pytest.mark.parametrize(
    "act",
    [awaits, awaits_a_chain, drops_callbacks, asks_a_thread, asks_a_subgraph, streams, calls, batches, nests_amc],
)
def test_every_request_of_a_particle_is_counted_once_wherever_it_is_made(act):
    usage = UsageMetadata(input_tokens=5, output_tokens=1, total_tokens=6)
    model = ScriptedChatModel(respond=lambda messages: AIMessage("hi", usage_metadata=usage))
    run = amc(in_a_node(model, act), n_particles=3, critic="uniform", **HARMLESS).run(
        {"messages": [HumanMessage("go")]}
    )
    assert run.usage == {"policy": Usage(3, 15, 3)}


def test_the_meter_hears_requests_and_no_events_of_nodes():
    heard = []

    async def listens(model, config):
        heard.append([type(handler) for handler in config["callbacks"].handlers])
        await model.ainvoke("hello")

    model = ScriptedChatModel(respond=lambda messages: "hi")
    run = amc(in_a_node(model, listens), n_particles=2, critic="uniform", **HARMLESS).run({"messages": []})
    assert heard == [[], []]
    assert run.usage["policy"].calls == 2
