"""Caches that a program shares do not make all particles one, and skip nothing that a particle does."""

import pytest
from langchain.agents import create_agent
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache as NodeCache
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import CachePolicy

from amc_agents import Never, amc, effect
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel
from tests.population.commits.ledger import Ledger, call, results
from tests.variants import variants

QUESTION = {"messages": [HumanMessage("How many days?", id="fixed")]}


@tool
@effect("read")
def search(query: str) -> str:
    """Search."""
    return "30 days"


def searching(messages):
    if isinstance(messages[-1], ToolMessage):
        return "done"
    rng = particle_rng()
    number = 0 if rng is None else int(rng.integers(10**9))
    return AIMessage("", tool_calls=[call("search", f"c{number}", query=str(number))])


def first_moves(graph):
    return len({each.steps[0].action for each in graph.run(QUESTION).population.trajectories})


@pytest.fixture
def shared_cache():
    yield InMemoryCache()
    set_llm_cache(None)


def searchers(model):
    return amc(create_agent(model, [search]), "uniform", n_particles=4, resample=Never())


def cached_model(cache):
    return ScriptedChatModel(respond=searching, cache=cache)


def test_langchains_shared_cache_is_passed_by_within_particles_and_used_outside(shared_cache):
    model = cached_model(None)
    graph = searchers(model)
    set_llm_cache(shared_cache)
    assert [first_moves(graph) for _ in range(2)] == [4, 4]
    assert not shared_cache._cache
    plain = [model.invoke("Outside."), model.invoke("Outside.")]
    assert plain[0].id == plain[1].id  # The second is the first, out of the cache.
    get_llm_cache().clear()
    assert not shared_cache._cache


def test_the_cache_of_a_model_is_passed_by_too():
    cache = InMemoryCache()
    graph = searchers(cached_model(cache))
    assert [first_moves(graph) for _ in range(2)] == [4, 4]
    assert not cache._cache


def cached_nodes(respond, tools, inner=False):
    model = ScriptedChatModel(respond=respond)
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]}, cache_policy=CachePolicy())
    builder.add_node("tools", ToolNode(tools), cache_policy=CachePolicy())
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    graph = builder.compile(cache=NodeCache())
    if not inner:
        return graph
    outer = StateGraph(MessagesState)
    outer.add_node("team", graph)
    outer.add_edge(START, "team")
    return outer.compile()


@variants("inner", [False, True])
def test_the_cache_of_a_node_is_passed_by(inner):
    agent = cached_nodes(searching, [search], inner)
    options = {"step_after": ["team"], "tools": {"team": "read"}} if inner else {}
    graph = amc(agent, "uniform", n_particles=4, resample=Never(), **options)
    assert [first_moves(graph) for _ in range(2)] == [4, 4]


def paying(messages):
    return "done" if results(messages) else AIMessage("", tool_calls=[call("pay", "p", n=1)])


def test_a_commit_behind_a_cached_node_is_made_in_every_run(tmp_path):
    ledger = Ledger(tmp_path / "ledger.db")

    @tool
    @effect("commit")
    def pay(n: int) -> str:
        """Pay."""
        ledger.add("pay", n=n)
        return "paid"

    graph = amc(cached_nodes(paying, [pay]), "uniform", n_particles=3, resample=Never())
    for _ in range(2):
        assert len(graph.run(QUESTION).commits) == 1
    assert len(ledger.rows("pay")) == 2
