"""Agents of many kinds go on from a durable point in another process: nothing of their state is lost."""

import asyncio
import operator
import sqlite3
from typing import Annotated, TypedDict

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Send
from pydantic import BaseModel

from amc_agents.errors import CriticError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.features.durable.points import points_thread
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep
from tests.population.durable.scenario import CONFIG, facts
from tests.population.test_amc_stores import caller, remember, remembered
from tests.population.test_hand_off import alice, team
from tests.population.worlds import say, start, sum_world, tool_caller


class Fails:
    """A critic that prefers high numbers and fails at a call."""

    predicts = "return"

    def __init__(self, call=None):
        self.call = call

    async def values(self, trajectories):
        if self.call is not None:
            self.call -= 1
            if self.call == 0:
                raise ConnectionError("the machine dies")
        digits = [[int(c) for c in trajectory.steps[-1].action if c.isdigit()] for trajectory in trajectories]
        return np.array([sum(found) / 10 for found in digits])


def draw():
    return int(particle_rng().integers(100))


def step_messages(number):
    return [AIMessage(f"Action: {number}"), HumanMessage("ok")]


def whole_log(so_far, writes):
    return [*so_far, *(item for write in writes for item in write)]


def looping(state_type, act, n_messages=9):
    builder = StateGraph(state_type)
    builder.add_node("tools", act)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) >= n_messages else "tools")
    return builder.compile()


def delta_agent(frequency):
    class Delta(MessagesState):
        log: Annotated[list, DeltaChannel(whole_log, snapshot_frequency=frequency)]

    def act(state):
        number = draw()
        return {"messages": step_messages(number), "log": [number]}

    return looping(Delta, act)


def remembering_agent():
    class Inner(TypedDict):
        numbers: Annotated[list, operator.add]

    inner_builder = StateGraph(Inner)
    inner_builder.add_node("remember", lambda state: {"numbers": []})
    inner_builder.add_edge(START, "remember")
    inner = inner_builder.compile(checkpointer=True)

    class Outer(MessagesState):
        remembered: list

    async def act(state):
        number = draw()
        return {
            "messages": step_messages(number),
            "remembered": (await inner.ainvoke({"numbers": [number]}))["numbers"],
        }

    return looping(Outer, act)


def sending_agent():
    class Bags(MessagesState):
        bags: Annotated[list, operator.add]

    def fill(state):
        state["bag"].append(sum(state["bag"]))
        return {"bags": [state["bag"]]}

    builder = StateGraph(Bags)
    builder.add_node("tools", lambda state: {"messages": step_messages(draw())})
    builder.add_node("fill", fill)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges(
        "tools", lambda state: [Send("fill", {"bag": [len(state["messages"])]}) for _ in range(2)], ["fill"]
    )
    builder.add_conditional_edges("fill", lambda state: END if len(state["messages"]) > 8 else "tools", ["tools", END])
    return builder.compile()


class Plan(BaseModel):
    goals: list[int] = []


def planning_agent():
    class Planned(MessagesState):
        plan: Plan
        seen: set
        pair: tuple

    def act(state):
        number = draw()
        return {
            "messages": step_messages(number),
            "plan": Plan(goals=[*state["plan"].goals, number]),
            "seen": {*state["seen"], number},
            "pair": (number, (number,)),
        }

    return looping(Planned, act)


AGENTS = {
    "DeltaChannel 1": (lambda: delta_agent(1), {"log": []}),
    "DeltaChannel 3": (lambda: delta_agent(3), {"log": []}),
    "DeltaChannel 1000": (lambda: delta_agent(1000), {"log": []}),
    "subgraph with memory": (remembering_agent, {"remembered": []}),
    "Send": (sending_agent, {"bags": []}),
    "sets, tuples and a pydantic model": (planning_agent, {"plan": Plan(), "seen": set(), "pair": ()}),
}


def wrapped(agent, saver, call=None, **settings):
    defaults = {"n_particles": 4, "resample": EveryStep(), "beta": 1.0, "seed": 1, "stateless_tools": True,
                "select": "weight"}  # fmt: skip
    return amc(agent, Fails(call), checkpointer=saver, **{**defaults, **settings})


def states(run):
    """The agents' states, with messages as texts."""
    return [
        {key: [message.text for message in value] if key == "messages" else value for key, value in output.items()}
        for output in run.outputs
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize(("make", "given"), AGENTS.values(), ids=AGENTS)
def test_the_state_of_an_agent_survives(make, given, call, tmp_path):
    plain = wrapped(make(), None).run(start() | given)
    assert all(point.ancestors is not None for point in plain.history[:-1])
    path = str(tmp_path / "threads.db")
    with SqliteSaver.from_conn_string(path) as saver, pytest.raises(CriticError, match="the machine dies"):
        wrapped(make(), saver, call).run(start() | given, CONFIG)
    with SqliteSaver.from_conn_string(path) as saver:
        run = wrapped(make(), saver).run(None, CONFIG)
    assert facts(run) == facts(plain)
    assert states(run) == states(plain)


@pytest.mark.thorough
@pytest.mark.parametrize("call", [1, 2])
async def test_a_tool_calling_agent_in_a_world_survives(call):
    """In a sync call, parallel calls of tools are made in threads, in any order."""

    def graph(saver, call=None):
        agent = create_agent(tool_caller(4, parallel=2), [say])
        return wrapped(agent, saver, call, environment=lambda state: sum_world(state, 20), resample=AtSteps(1, 2))

    plain = await graph(None).arun(start())
    saver = InMemorySaver()
    with pytest.raises(CriticError, match="the machine dies"):
        await graph(saver, call).arun(start(), CONFIG)
    assert facts(await graph(saver).arun(None, CONFIG)) == facts(plain)


@pytest.mark.thorough
@pytest.mark.parametrize("call", [2, 3])
def test_the_writes_of_particles_to_the_store_survive(call):
    results = []
    for broken in (False, True):
        store, saver = InMemoryStore(), InMemorySaver()
        store.put(("memories",), "0", {"n": -1})
        agent = create_agent(caller(4), [remember], store=store)
        if broken:
            with pytest.raises(CriticError, match="the machine dies"):
                wrapped(agent, saver, call).run(start(), CONFIG)
        run = wrapped(agent, saver).run(None if broken else start(), CONFIG)
        results.append([*map(remembered, run.outputs), {item.value["n"] for item in store.search(("memories",))}])
    assert results[0] == results[1]


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("call", [1, 2])
def test_a_node_of_a_checkpointed_graph_goes_on_and_leaves_no_points(call, asynchronous):
    saver, calls = InMemorySaver(), []

    def act(state):
        calls.append(len(state["messages"]))
        return {"messages": step_messages(draw())}

    def outer(call=None):
        builder = StateGraph(MessagesState)
        builder.add_node("amc", wrapped(looping(MessagesState, act), None, call))
        builder.add_edge(START, "amc")
        return builder.compile(checkpointer=saver)

    def invoke(graph, given, config):
        return asyncio.run(graph.ainvoke(given, config)) if asynchronous else graph.invoke(given, config)

    plain = invoke(outer(), start(), {"configurable": {"thread_id": "other"}})
    calls.clear()
    with pytest.raises(CriticError, match="the machine dies"):
        invoke(outer(call), start(), CONFIG)
    assert len(saver.storage) == 2 + (call > 1)
    again = invoke(outer(), None, CONFIG)
    assert [message.text for message in again["messages"]] == [message.text for message in plain["messages"]]
    assert len(calls) == 4 * 4 + 4, "one step is repeated"
    assert set(saver.storage) == {"t", "other"}


async def test_a_hand_off_leaves_no_points():
    saver = InMemorySaver()
    graph = team(alice("transfer")).copy(update={"checkpointer": saver})
    output = await graph.ainvoke(start(), CONFIG)
    assert output["messages"][-1].text == "bob answers"
    assert {thread for thread, kept in saver.storage.items() if kept} == {"t"}


@pytest.mark.thorough  # quick: test_a_turn_starts_from_the_winners_world_of_the_turn_before
def test_the_second_turn_of_a_conversation_goes_on_as_itself():
    conversations = []
    for call in (None, 2):
        saver = InMemorySaver()

        def act(state):
            return {"messages": step_messages(draw())}

        builder = StateGraph(MessagesState)
        builder.add_node("tools", act)
        builder.add_edge(START, "tools")
        builder.add_conditional_edges("tools", lambda state: "tools" if len(state["messages"]) % 7 else END)
        agent = builder.compile()
        first = wrapped(agent, saver).run(start(), CONFIG)
        turn = {"messages": [HumanMessage("again")]}
        if call is not None:
            with pytest.raises(CriticError, match="the machine dies"):
                wrapped(agent, saver, call).run(turn, CONFIG)
        second = wrapped(agent, saver).run(None if call else turn, CONFIG)
        conversations.append([facts(first), facts(second)])
    assert conversations[0] == conversations[1]
    assert conversations[0][0] != conversations[0][1]


def test_without_checkpoints_before_the_end_there_are_no_points():
    saver = InMemorySaver()
    wrapped(looping(MessagesState, lambda state: {"messages": step_messages(draw())}), saver).run(
        start(), CONFIG, durability="exit"
    )
    assert points_thread("t") not in saver.storage


class Unserialisable:
    pass


def test_a_state_that_cannot_be_serialised_is_noted_and_the_run_goes_on():
    class Held(MessagesState):
        held: object

    def act(state):
        last = len(state["messages"]) > 6
        return {"messages": step_messages(draw()), "held": None if last else Unserialisable()}

    saver = InMemorySaver()
    run = wrapped(looping(Held, act), saver).run(start() | {"held": None}, CONFIG)
    assert any("no more durable points" in note and "Unserialisable" in note for note in run.notes)
    assert points_thread("t") not in saver.storage


def test_a_checkpointer_that_takes_no_other_thread_is_noted_and_the_run_goes_on():
    class Strict(SqliteSaver):
        def put(self, config, *arguments):
            if config["configurable"]["thread_id"] != "t":
                raise ValueError("no such thread")
            return super().put(config, *arguments)

    saver = Strict(sqlite3.connect(":memory:", check_same_thread=False))
    run = wrapped(looping(MessagesState, lambda state: {"messages": step_messages(draw())}), saver).run(start(), CONFIG)
    assert any("a crash restarts the run from its input (ValueError: no such thread)" in note for note in run.notes)


@pytest.mark.thorough  # quick: test_without_checkpoints_before_the_end_there_are_no_points
def test_a_population_inside_a_particle_has_no_points():
    inner = wrapped(looping(MessagesState, lambda state: {"messages": step_messages(draw())}), None)

    async def act(state):
        answer = await inner.ainvoke({"messages": [HumanMessage("inner")]})
        return {"messages": [AIMessage("Action: " + answer["messages"][-2].text[-1]), HumanMessage("ok")]}

    saver = InMemorySaver()
    wrapped(looping(MessagesState, act, 5), saver).run(start(), CONFIG)
    assert set(saver.storage) == {"t", points_thread("t")}
