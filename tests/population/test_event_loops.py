"""Sync and async calls in one process: no client ever meets a connection of another event loop.

With the real ChatOpenAI and a server that keeps connections open; nothing is retried by the client.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Callable
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ModelRequest, ToolCallRequest, wrap_model_call, wrap_tool_call
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool, tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.config import get_store, get_stream_writer
from langgraph.errors import GraphInterrupt
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore

from amc_agents import (
    ActorCritic,
    CritiqueRefine,
    EveryStep,
    PosteriorSampling,
    actor_critic_model,
    amc,
    effect,
)
from amc_agents.testing.scripted import ScriptedChatModel
from tests.scripted_http import scripted_server
from tests.variants import variants

QUESTION = {"messages": [("user", "How many days of leave do I have?")]}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"query": "leave"}'}}
ROLES = "Hypothesis: 30 days\nPosterior: 30 days"


def answer(asked: Any) -> Any:
    """Call the tool once, then answer; also in the forms of PSRL's roles."""
    after_tool = any(message["role"] == "tool" for message in asked["messages"])
    said = "30 days" if "<world>" not in str(asked["messages"]) else ROLES
    called = not asked.get("tools") or after_tool
    message = {"role": "assistant", "content": said, **({} if called else {"tool_calls": [CALL]})}
    choices = [{"index": n, "message": message, "finish_reason": "stop"} for n in range(asked.get("n") or 1)]
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}
    if asked.get("stream"):
        pieces = [{"index": 0, "delta": {"index": 0, **message}, "finish_reason": "stop"}]
        chunk = json.dumps({**reply, "object": "chat.completion.chunk", "choices": pieces})
        return 200, f"data: {chunk}\n\ndata: [DONE]\n\n"
    return 200, reply


def embed(asked: Any) -> Any:
    return 200, {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": [0.5, 0.5]}],
                 "model": "e", "usage": {"prompt_tokens": 1, "total_tokens": 1}}  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with scripted_server({"POST /v1/chat/completions": answer, "POST /v1/embeddings": embed}, keep_alive=True) as url:
        yield url


@pytest.fixture
def chat(server):
    return ChatOpenAI(model="m", base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@tool
@effect("read")
def search(query: str) -> str:
    """Search the handbook."""
    return "Employees have 30 days."


@tool("search")
@effect("read")
async def async_search(query: str) -> str:
    """Search the handbook."""
    return "Employees have 30 days."


def embeddings_beside(chat: ChatOpenAI) -> OpenAIEmbeddings:
    return OpenAIEmbeddings(
        model="e", base_url=chat.openai_api_base, api_key="none", max_retries=0, check_embedding_ctx_length=False
    )


def with_embeddings(chat: ChatOpenAI) -> Any:
    embeddings = embeddings_beside(chat)

    def retrieve(query: str) -> str:
        return str(embeddings.embed_query(query))

    async def aretrieve(query: str) -> str:
        return str(await embeddings.aembed_query(query))

    found = StructuredTool.from_function(retrieve, aretrieve, name="search", description="Search the handbook.")
    return create_agent(chat, [effect("read")(found)])


def with_store(chat: ChatOpenAI) -> Any:
    """A store that embeds its entries, used by a tool that is only a coroutine."""

    @tool("search")
    @effect("read")
    async def recall(query: str) -> str:
        """Search the notes."""
        await get_store().aput(("notes",), "note", {"text": query})
        (found,) = await get_store().asearch(("notes",), query=query)
        return str(found.value)

    store = InMemoryStore(index={"dims": 2, "embed": embeddings_beside(chat), "fields": ["text"]})
    return create_agent(chat, [recall], store=store)


def in_nodes(chat: ChatOpenAI) -> Any:
    """Nodes that hide the model, with a retry and a fallback; the second is only a coroutine."""
    hidden = chat.bind(stop=["x"]).with_retry(stop_after_attempt=1).with_fallbacks([chat])

    def first(state: MessagesState) -> Any:
        return {"messages": [hidden.invoke(state["messages"])]}

    async def second(state: MessagesState) -> Any:
        assert "".join([chunk.text async for chunk in chat.astream(state["messages"])]) == "30 days"
        return {"messages": [await hidden.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    return graph.compile()


def psrl(chat: ChatOpenAI) -> Any:
    return create_agent(chat, [search], middleware=[PosteriorSampling(chat, prior="nothing is known")])


AGENTS: dict[str, Callable[[ChatOpenAI], Any]] = {
    "tool": lambda chat: create_agent(chat, [search]),
    "store": with_store,
    "async tool": lambda chat: create_agent(chat, [async_search]),
    "embeddings": with_embeddings,
    "hidden in nodes": in_nodes,
    "LAC": lambda chat: create_agent(chat, [search], middleware=[ActorCritic("uniform", k=2)]),
    "PNLC": lambda chat: create_agent(chat, [search], middleware=[CritiqueRefine(critique="self", k=2, refine=False)]),
    "LAC as the model": lambda chat: create_agent(actor_critic_model(chat, "uniform", k=2), [search]),
}


def told_apart(trajectories: Any) -> list[float]:
    return [0.5 + 0.1 * (number % 2) for number, _ in enumerate(trajectories)]


def wrapped(agent: Any) -> Any:
    step_after = None if "tools" in agent.nodes else ["first", "second"]
    return amc(agent, told_apart, n_particles=4, resample=EveryStep(), beta=0.1, stateless_tools=True,
               step_after=step_after)  # fmt: skip


def text(state: Any) -> str:
    return str(state["messages"][-1].text)


async def streamed(graph: Any) -> str:
    states = [chunk async for mode, chunk in graph.astream(QUESTION, stream_mode=["values", "messages"])
              if mode == "values"]  # fmt: skip
    return text(states[-1])


# The last connection of a plain `asyncio.run` stays open until it is found to be dead.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@variants("name", AGENTS)
def test_calls_in_every_order(chat, name):
    plain = AGENTS[name](chat)
    graph = wrapped(plain)

    async def in_one_loop() -> list[str]:
        before = text(await plain.ainvoke(QUESTION))
        calls = [graph.ainvoke(QUESTION), asyncio.to_thread(graph.invoke, QUESTION), plain.ainvoke(QUESTION)]
        together = [text(state) for state in await asyncio.gather(*calls)]
        return [before, *together, await streamed(graph), text(await plain.ainvoke(QUESTION))]

    def in_a_stream() -> str:
        chunks = graph.stream(QUESTION, stream_mode=["values", "messages"])
        return text([chunk for mode, chunk in chunks if mode == "values"][-1])

    assert text(graph.invoke(QUESTION)) == "30 days"
    assert text(asyncio.run(graph.ainvoke(QUESTION))) == "30 days"
    assert text(asyncio.run(plain.ainvoke(QUESTION))) == "30 days"
    assert text(graph.invoke(QUESTION)) == "30 days"
    assert text(asyncio.run(graph.ainvoke(QUESTION))) == "30 days"
    assert asyncio.run(in_one_loop()) == ["30 days"] * 6
    assert in_a_stream() == asyncio.run(streamed(graph)) == "30 days"
    gc.collect()  # Here, and not in a later test.


@pytest.mark.thorough  # quick: test_calls_in_every_order[tool]
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_decisions_in_every_order(chat):
    deciding = actor_critic_model(chat, "uniform", k=3)

    async def in_one_loop() -> list[str]:
        first = await deciding.ainvoke("How many?")
        second = await asyncio.to_thread(deciding.invoke, "How many?")
        return [first.text, second.text, (await chat.ainvoke("How many?")).text]

    for _ in range(2):
        assert deciding.invoke("How many?").text == "30 days"
        assert asyncio.run(deciding.ainvoke("How many?")).text == "30 days"
        assert asyncio.run(chat.ainvoke("How many?")).text == "30 days"
        assert asyncio.run(in_one_loop()) == ["30 days"] * 3
    gc.collect()


def test_a_model_that_is_bound_to_a_loop_by_more_than_its_connections():
    class Bound(ScriptedChatModel):
        """A client that belongs to the loop of its first use, like those of gRPC."""

        loops: list[Any]

        async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
            self.loops.append(asyncio.get_running_loop())
            assert len(set(self.loops)) == 1
            return self._result(messages)

    model = Bound(respond=lambda messages: "30 days", loops=[])
    plain = in_nodes(model)
    graph = wrapped(plain)

    async def both() -> list[str]:
        calls = [graph.ainvoke(QUESTION), asyncio.to_thread(graph.invoke, QUESTION), plain.ainvoke(QUESTION)]
        return [text(state) for state in await asyncio.gather(*calls)]

    assert text(graph.invoke(QUESTION)) == "30 days"
    assert asyncio.run(both()) == ["30 days"] * 3


# --- sync-only middleware -----------------------------------------------------------------------------------


@wrap_model_call
def counted(request: ModelRequest, handler: Callable[[ModelRequest], Any]) -> Any:
    MODEL_CALLS.append(threading.get_ident())
    return handler(request)


@wrap_tool_call
def guarded(request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
    result = handler(request)
    return result.model_copy(update={"content": f"checked: {result.text}"})


MODEL_CALLS: list[int] = []
BESIDE: dict[str, Callable[[ChatOpenAI], list[AgentMiddleware]]] = {
    "alone": lambda chat: [],
    "LAC": lambda chat: [ActorCritic("uniform", k=2)],
    "PNLC": lambda chat: [CritiqueRefine(critique="self", k=2, refine=False)],
    "PSRL": lambda chat: [PosteriorSampling(chat, prior="nothing is known")],
}


@variants("beside", BESIDE)
@variants("tools", [[search], [async_search]], ids=["sync tool", "async tool"])
def test_middleware_without_a_coroutine_works_as_with_invoke(chat, beside, tools):
    MODEL_CALLS.clear()
    agent = create_agent(chat, tools, middleware=[counted, guarded, *BESIDE[beside](chat)], store=InMemoryStore())
    messages = wrapped(agent).invoke(QUESTION)["messages"]
    assert messages[-1].text == "30 days"
    assert messages[-2].text == "checked: Employees have 30 days."
    assert len(MODEL_CALLS) == 8, "two model calls of each of four particles"


# --- what a sync call still does ----------------------------------------------------------------------------


def test_the_context_of_the_caller_reaches_the_agents_threads():
    tenant: ContextVar[str] = ContextVar("tenant", default="none")
    seen = []

    def respond(messages: Any) -> AIMessage:
        seen.append(tenant.get())
        return AIMessage("30 days")

    graph = wrapped(in_nodes(ScriptedChatModel(respond=respond)))
    tenant.set("acme")
    graph.invoke(QUESTION)
    assert set(seen) == {"acme"}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_abandoned_thread_calls_no_more_tools_and_models(asynchronous):
    """A thread cannot be stopped, so its node goes on; what it asks for afterwards is not done."""
    released, done, refused, ended = threading.Event(), [], [], threading.Event()
    model = ScriptedChatModel(respond=lambda messages: "30 days")

    @tool
    @effect("read")
    def search(query: str) -> str:
        """Search the handbook."""
        return "found"

    @effect("read")
    def hanging(state: MessagesState) -> Any:
        get_stream_writer()("begun")
        assert released.wait(10)
        for ask, question in ((model.invoke, "leave?"), (search.invoke, {"query": "leave"})):
            try:
                done.append(ask(question))
            except (asyncio.CancelledError, GraphInterrupt) as error:
                refused.append(type(error))
        ended.set()
        return {"messages": [AIMessage("30 days")]}

    builder = StateGraph(MessagesState)
    builder.add_node("hanging", hanging)
    builder.add_edge(START, "hanging")
    graph: Any = amc(builder.compile(), "uniform", step_after=["hanging"], n_particles=1)

    async def leave() -> None:
        async with aclosing(graph.astream(QUESTION, stream_mode="custom")) as events:
            await anext(events)
        released.set()  # Otherwise `asyncio.run` would wait for the thread.

    if asynchronous:
        asyncio.run(leave())
    else:
        events = graph.stream(QUESTION, stream_mode="custom")
        next(events)
        events.close()
    released.set()
    assert ended.wait(10)
    assert (done, refused) == ([], [asyncio.CancelledError, GraphInterrupt])
