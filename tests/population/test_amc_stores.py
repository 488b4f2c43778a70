"""The agent's store under `amc`: each particle writes to its own view, and only the winner's writes are kept."""

from __future__ import annotations

import asyncio
import functools
from typing import Annotated, Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolArg, tool
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
from langgraph.types import Command

from amc_agents import effect
from amc_agents.errors import AgentContractError, CriticError, QuorumLost
from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.worlds import Prefers, start

ALL = 1000


@tool
@effect("read")
async def remember(number: int, runtime: ToolRuntime) -> str:
    """Remember a number."""
    assert runtime.store is not None
    read = [item.value["n"] for item in await runtime.store.asearch(("memories",), limit=ALL)]
    await runtime.store.aput(("memories",), f"{len(read)}", {"n": number})
    return f"read {read}"


@tool
@effect("read")
def remember_in_sync(number: int, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Remember a number with sync methods and `get_store`."""
    read = [item.value["n"] for item in get_store().search(("memories",), limit=ALL)]
    store.put(("memories",), f"{len(read)}", {"n": number})
    return f"read {read}"


def caller(n_calls, name="remember"):
    def respond(messages):
        rounds = sum(isinstance(message, AIMessage) for message in messages)
        if rounds >= n_calls:
            return "done"
        number = int(particle_rng().integers(10**6))
        return AIMessage("", tool_calls=[{"name": name, "args": {"number": number}, "id": f"call-{rounds}"}])

    return ScriptedChatModel(respond=respond)


def remembered(output):
    """The numbers that a particle stored, and its reads before each."""
    numbers = [call["args"]["number"] for message in output["messages"] for call in getattr(message, "tool_calls", [])]
    return numbers, [message.text for message in output["messages"] if isinstance(message, ToolMessage)]


@pytest.fixture(params=["sync", "async"])
def play(request):
    def run(graph, config=None):
        return graph.run(start(), config) if request.param == "sync" else asyncio.run(graph.arun(start(), config))

    return run


@pytest.mark.thorough
@pytest.mark.parametrize("used", [remember, remember_in_sync])
def test_particles_read_their_own_writes_and_only_the_winners_are_kept(play, used):
    store = InMemoryStore()
    store.put(("memories",), "0", {"n": -1})
    agent = create_agent(caller(3, used.name), [used], store=store)
    run = play(amc(agent, Prefers(), n_particles=6, resample=AtSteps(1, 2), seed=1, beta=1.0))
    assert any(len(set(point.ancestors.tolist())) < 6 for point in run.history if point.ancestors is not None)
    for output in run.outputs:
        numbers, read = remembered(output)
        assert read == [f"read {[-1, *numbers[:i]]}" for i in range(3)], "a fork has its ancestor's past, and no more"
    numbers, _ = remembered(run.best_output)
    assert [item.value["n"] for item in store.search(("memories",), limit=ALL)] == [-1, *numbers]
    assert not any("store" in note for note in run.notes)


def test_the_winners_writes_reach_a_database(play, tmp_path):
    with SqliteStore.from_conn_string(str(tmp_path / "sync.db")) as store:
        agent = create_agent(caller(2), [remember], store=store)
        run = play(amc(agent, Prefers(2), n_particles=4, resample=Never(), seed=1))
        kept = {item.value["n"] for item in store.search(("memories",), limit=ALL)}
    assert kept == set(remembered(run.best_output)[0])


@pytest.mark.thorough  # quick: test_the_winners_writes_reach_a_database
async def test_the_winners_writes_reach_an_async_database_and_the_outer_graphs_store(tmp_path):
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "async.db")) as store:
        outer = StateGraph(MessagesState)
        agent = create_agent(caller(2), [remember])
        outer.add_node("amc", amc(agent, Prefers(), n_particles=3, resample=AtSteps(1)))
        outer.add_edge(START, "amc")
        output = await outer.compile(store=store).ainvoke(start())
        kept = {item.value["n"] for item in await store.asearch(("memories",), limit=ALL)}
    assert kept == set(remembered(output)[0])
    assert len(kept) == 2


def test_nested_amc_graphs_keep_only_the_overall_winners_writes(play):
    store = InMemoryStore()
    inner = amc(create_agent(caller(2), [remember]), Prefers(), n_particles=3, resample=AtSteps(1))
    builder = StateGraph(MessagesState)
    builder.add_node("tools", effect("read")(inner))
    builder.add_edge(START, "tools")
    run = play(amc(builder.compile(store=store), Prefers(), n_particles=2, resample=Never(), stateless_tools=True))
    assert [item.value["n"] for item in store.search(("memories",))] == remembered(run.best_output)[0]


def test_a_concurrent_change_of_the_store_is_noted(play):
    store = InMemoryStore()

    class Interferes(Prefers):
        async def values(self, trajectories):
            store.put(("memories",), "0", {"n": -5})
            return await super().values(trajectories)

    agent = create_agent(caller(2), [remember], store=store)
    run = play(amc(agent, Interferes(), n_particles=3, resample=AtSteps(1)))
    assert any(note.startswith("others changed memories/0 in the store") for note in run.notes)
    assert store.get(("memories",), "0").value["n"] == remembered(run.best_output)[0][0]


def test_a_failed_run_writes_nothing_to_the_store(play):
    store = InMemoryStore()

    def respond(messages):
        return caller(2).respond(messages) if len(messages) < 3 else RuntimeError("the provider is down")

    agent = create_agent(ScriptedChatModel(respond=respond), [remember], store=store)
    with pytest.raises(QuorumLost):
        play(amc(agent, "uniform", n_particles=3, resample=Never()))
    assert store.search(()) == []
    agent = create_agent(caller(2), [remember], store=store)
    with pytest.raises(CriticError):
        play(amc(agent, lambda trajectories: [np.nan] * len(trajectories), n_particles=3, resample=AtSteps(2)))
    assert store.search(()) == []


def test_the_winners_writes_are_kept_after_an_early_stop_or_a_hand_off(play):
    store = InMemoryStore()
    agent = create_agent(caller(4), [remember], store=store)
    run = play(amc(agent, "uniform", n_particles=3, resample=Never(), stop_at=0.0,
                   reward=lambda state: float(len(state["messages"]))))  # fmt: skip
    assert {item.value["n"] for item in store.search(("memories",))} == set(remembered(run.best_output)[0])

    @tool
    @effect("read")
    async def hand_off(number: int, runtime: ToolRuntime) -> Command:
        """Hand off to bob."""
        assert runtime.store is not None
        await runtime.store.aput(("handed",), str(number), {"n": number})
        return Command(goto="bob", graph=Command.PARENT, update={"messages": [HumanMessage(str(number))]})

    outer = StateGraph(MessagesState)
    agent = create_agent(caller(1, "hand_off"), [hand_off])
    outer.add_node("alice", amc(agent, Prefers(), n_particles=3, resample=Never()), destinations=("bob",))
    outer.add_node("bob", lambda state: {"messages": [AIMessage("bob")]})
    outer.add_edge(START, "alice")
    output = asyncio.run(outer.compile(store=store).ainvoke(start()))
    assert output["messages"][-1].text == "bob"
    assert len(store.search(("handed",))) == 1


# --- tools that hold a store of their own -------------------------------------------------------------------

module_store = InMemoryStore()


def by_closure(store):
    @tool
    def keep(number: int) -> str:
        """Keep a number."""
        store.put(("m",), str(number), {})
        return "kept"

    return keep


def by_default(store):
    @tool
    def keep(number: int, to: Annotated[BaseStore, InjectedToolArg] = store) -> str:
        """Keep a number."""
        return "kept"

    return keep


def by_global(store):
    @tool
    async def keep(number: int) -> str:
        """Keep a number."""
        await module_store.aput(("m",), str(number), {})
        return "kept"

    return keep


def by_attribute(store):
    class Keep(BaseTool):
        name: str = "keep"
        description: str = "Keep a number."
        memory: Any

        def _run(self, number: int) -> str:
            return "kept"

    return Keep(memory={"store": store})


def by_method(store):
    class Memory:
        def __init__(self):
            self.store = store

        def keep(self, number: int) -> str:
            """Keep a number."""
            return "kept"

    return tool(Memory().keep)


def by_partial(store):
    bound = functools.partial(lambda store, number: "kept", store)

    @tool
    def keep(number: int) -> str:
        """Keep a number."""
        return bound(number)

    return keep


def by_helper(store):
    @tool
    def keep(number: int) -> str:
        """Keep a number."""
        return helper(number)

    def helper(number):
        store.put(("m",), str(number), {})
        return "kept"

    return keep


def by_object(store):
    class Memory:
        def __init__(self):
            self.inner = {"store": store}

    memory = Memory()

    @tool
    def keep(number: int) -> str:
        """Keep a number."""
        return str(memory)

    return keep


@pytest.mark.parametrize(
    "make", [by_closure, by_default, by_global, by_attribute, by_method, by_partial, by_helper, by_object]
)
def test_a_tool_that_holds_a_store_is_refused(make):
    agent = create_agent(caller(1, "keep"), [make(InMemoryStore())])
    with pytest.raises(AgentContractError, match=r"tool keep holds a store \(InMemoryStore\)"):
        amc(agent, "uniform", stateless_tools=True)
    assert amc(agent, "uniform", tools={"keep": "read"})


def test_a_node_that_holds_a_store_is_refused():
    store = InMemoryStore()

    def tools(state):
        store.put(("m",), "k", {})
        return {"messages": [AIMessage("hi")]}

    builder = StateGraph(MessagesState)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    with pytest.raises(AgentContractError, match=r"node tools holds a store \(InMemoryStore\)"):
        amc(builder.compile(), "uniform", stateless_tools=True)


def test_a_tool_that_uses_the_agents_store_is_accepted():
    assert amc(create_agent(caller(1), [remember], store=InMemoryStore()), "uniform", resample=EveryStep())
