"""`amc` within LangGraph: streams, context, nesting, memory."""

import asyncio
from dataclasses import dataclass
from typing import Any, TypedDict
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime

from amc_agents import AmcSettings
from amc_agents.errors import QuorumLost
from amc_agents.population.wrap import amc
from amc_agents.runtime.effects import effect
from amc_agents.smc import AtSteps
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.usage import Usage
from tests.arguments import arguments
from tests.population.worlds import (
    TASK,
    Prefers,
    ReturnSoFar,
    SumWorld,
    digits,
    number_agent,
    start,
    sum_world,
)
from tests.variants import variants


def graph(**settings):
    return amc(
        number_agent(),
        ReturnSoFar(),
        **arguments(environment=sum_world, n_particles=4, resample=AtSteps(2), **settings),
    )


async def test_values_and_updates_are_those_of_the_outer_graph():
    modes = [event async for event in graph().astream(start(), stream_mode=["values", "updates"])]
    updates = [next(iter(event)) for mode, event in modes if mode == "updates"]
    assert updates == ["init", "propagate", "weigh", "resample", "propagate", "weigh", "finalize"]
    values = [event for mode, event in modes if mode == "values"]
    assert [len(value["messages"]) for value in values] == [1, 9]
    assert all(set(value) <= {"messages", "done"} for value in values)
    assert "amc_system" not in str(modes)


async def test_custom_events_show_weights_ancestors_and_ess():
    events = [event async for event in graph().astream(start(), stream_mode="custom")]
    assert [event["type"] for event in events] == ["amc.weigh", "amc.resample", "amc.weigh", "amc.run"]
    assert len(events[0]["log_weights"]) == len(events[0]["values"]) == len(events[1]["ancestors"]) == 4
    assert 1 <= events[0]["ess"] <= 4
    assert events[-1]["run"].best.return_ > 0


async def test_only_the_winners_messages_are_streamed():
    run, seen = None, []
    async for mode, event in graph(seed=0).astream(start(), stream_mode=["messages", "custom"]):
        if mode == "messages":
            seen.append(event[0])
        elif event["type"] == "amc.run":
            run = event["run"]
    answers = [message for message in seen if isinstance(message, AIMessage)]
    ids = [message_id for step in run.best.steps for message_id in step.message_ids]
    assert [message.id for message in seen] == ids
    assert len(answers) == 4


def test_sync_stream_works_too():
    events = list(graph().stream(start(), stream_mode="custom"))
    assert events[-1]["type"] == "amc.run"
    assert [message.type for message, _ in graph().stream(start(), stream_mode="messages")] == ["ai", "human"] * 4


async def test_a_nested_graph_is_isolated_from_the_outer_run():
    outer = StateGraph(MessagesState)
    outer.add_node("amc", graph())
    outer.add_node("after", lambda state: {"messages": [AIMessage("done")]})
    outer.add_edge(START, "amc")
    outer.add_edge("amc", "after")
    saver = InMemorySaver()
    compiled = outer.compile(checkpointer=saver)
    output = await compiled.ainvoke(start(), {"configurable": {"thread_id": "t"}})
    assert [m.type for m in output["messages"]] == ["human", *["ai", "human"] * 4, "ai"]
    assert {key[0] if isinstance(key, tuple) else key for key in saver.storage} == {"t"}
    again = compiled.invoke(start(), {"configurable": {"thread_id": "sync"}})
    assert len(again["messages"]) == 10


async def test_a_second_turn_sees_the_first():
    seen = []

    def respond(messages):
        seen.append(len(messages))
        return "Action: 1"

    agent = number_agent(respond)
    wrapped = amc(agent, environment=lambda s: sum_world(s, 2), n_particles=1, checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "talk"}}
    first = await wrapped.ainvoke(start(), config)
    second = await wrapped.ainvoke({"messages": [HumanMessage("again")]}, config)
    assert len(first["messages"]) == 5
    assert len(second["messages"]) == 10
    assert seen == [1, 3, 6, 8]
    run = await wrapped.arun({"messages": [HumanMessage("and again")]}, config)
    assert len(run.best.steps) == 2


@dataclass
class Settings:
    number: int = 0


async def test_with_a_dataclass_context_the_critic_is_named_in_configurable():
    @effect("read")
    def tools(state, runtime: Runtime[Settings]):
        return {"messages": [AIMessage(f"Action: {runtime.context.number}"), HumanMessage("ok")]}

    builder = StateGraph(MessagesState, context_schema=Settings)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    critic = ReturnSoFar()
    wrapped = amc(builder.compile(), "uniform", n_particles=1)
    run = await wrapped.arun(start(), context=Settings(7))
    assert run.best.steps[0].action == "7"
    run = await wrapped.arun(start(), {"configurable": {"critic": critic}}, context=Settings(8))
    assert run.best.steps[0].action == "8"
    assert critic.batches == [[1]]


async def test_a_dict_context_can_name_the_critic_beside_the_agents_keys():
    class Context(TypedDict, total=False):
        name: str

    @effect("read")
    def tools(state, runtime: Runtime[Context]):
        assert runtime.context == {"name": "x"}
        return {"messages": [AIMessage("Action: 1"), HumanMessage("ok")]}

    builder = StateGraph(MessagesState, context_schema=Context)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    critic = ReturnSoFar()
    await amc(builder.compile(), n_particles=1).arun(start(), context={"name": "x", "critic": critic})
    assert critic.batches == [[1]]


def test_usage_counts_the_models_calls_by_role():
    def respond(messages):
        usage = {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13}
        return AIMessage(digits(messages), usage_metadata=usage)

    run = amc(number_agent(respond), environment=sum_world, n_particles=2).run(start())
    assert run.usage["policy"] == Usage(calls=8, input_tokens=80, output_tokens=24)


def test_mutable_state_is_not_shared_between_siblings():
    class State(MessagesState):
        bag: list

    @effect("read")
    def tools(state):
        state["bag"].append(len(state["messages"]))
        nested = state["bag"][0]["inner"]
        for change in (nested[0].add, nested[1].append):
            change(uuid4().hex)
        return {"bag": state["bag"], "messages": [AIMessage("Action: 1"), HumanMessage("ok")]}

    builder = StateGraph(State)
    builder.add_node("tools", tools)
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) > 6 else "tools")

    wrapped = amc(builder.compile(), Prefers(0), n_particles=4, resample=AtSteps(1), beta=1.0, select="weight")
    run = wrapped.run(start() | {"bag": [{"inner": (set(), [])}]})
    assert run.history[0].ancestors.tolist() == [0, 0, 0, 0]
    assert all(len(output["bag"]) == 4 for output in run.outputs)
    assert [[len(kept) for kept in output["bag"][0]["inner"]] for output in run.outputs] == [[3, 3]] * 4


def without_checkpointer():
    """A graph compiled with `checkpointer=False`, as in trustcall and langmem."""
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage("inner")]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=False)


async def ainvoked(state):
    return await without_checkpointer().ainvoke(state)


@pytest.mark.parametrize(
    "node",
    [without_checkpointer(), lambda state: without_checkpointer().invoke(state), ainvoked],
    ids=["as a node", "invoked in a node", "ainvoked in a node"],
)
def test_the_agent_may_contain_a_graph_without_a_checkpointer(node):
    builder = StateGraph(MessagesState)
    builder.add_node("act", effect("read")(node))
    builder.add_edge(START, "act")
    builder.add_conditional_edges("act", lambda state: END if len(state["messages"]) > 3 else "act")
    run = amc(
        builder.compile(),
        ReturnSoFar(),
        n_particles=3,
        settings=AmcSettings(quorum=3),
        resample=AtSteps(1),
        step_after=["act"],
        reward=lambda state: 0.0,
    ).run(start())
    assert [len(output["messages"]) for output in run.outputs] == [4, 4, 4]


def test_a_fork_starts_at_its_ancestors_pause_even_if_no_node_suspends():
    async def think(state):
        return {"messages": [AIMessage(f"thought {len(state['messages'])}")]}

    @effect("read")
    async def tools(state):
        return {"messages": [HumanMessage(f"seen {len(state['messages'])}")]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("tools", tools)
    builder.add_edge(START, "think")
    builder.add_edge("think", "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["messages"]) > 8 else "think")

    run = amc(builder.compile(), Prefers(0), n_particles=4, resample=AtSteps(1, 2, 3), beta=1.0).run(start())
    assert [point.ancestors.tolist() for point in run.history if point.ancestors is not None] == [[0, 0, 0, 0]] * 3
    texts = ["thought 1", "seen 2", "thought 3", "seen 4", "thought 5", "seen 6", "thought 7", "seen 8"]
    assert [[message.text for message in output["messages"][1:]] for output in run.outputs] == [texts] * 4


@pytest.mark.filterwarnings("ignore:This API is in beta")
async def test_the_graph_keeps_the_agents_name():
    model = ScriptedChatModel(respond=lambda messages: AIMessage("hello"))
    clerk = create_agent(model, [], name="clerk")
    wrapped = amc(clerk, "uniform", n_particles=2, step_after=["model"])
    assert wrapped.name == wrapped.get_name() == "clerk"
    assert amc(clerk, "uniform", step_after=["model"], name="clerks").name == "clerks"
    assert wrapped.as_tool(description="Ask the clerk.").name == "clerk"
    output = await wrapped.ainvoke(start())
    assert output["messages"][-1].name == "clerk"


class FailsOnce(SumWorld):
    """A world that fails once, at a third step."""

    failures = 0

    async def step(self, action):
        if len(self.taken) == 2 and type(self).failures == 0:
            type(self).failures += 1
            raise ConnectionError("the container restarts")
        return await super().step(action)


@pytest.mark.thorough
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_thread_restarts_a_run_that_broke_off(nested, asynchronous, caplog):
    class World(FailsOnce):
        failures = made = open = 0

    compiled: Any = amc(
        number_agent(),
        "uniform",
        environment=lambda state: (World(), TASK),
        n_particles=2,
        settings=AmcSettings(quorum=2),
        resample=AtSteps(1),
        checkpointer=None if nested else InMemorySaver(),
    )
    if nested:
        outer = StateGraph(MessagesState)
        outer.add_node("amc", compiled)
        outer.add_edge(START, "amc")
        compiled = outer.compile(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}

    def call(given):
        return asyncio.run(compiled.ainvoke(given, config)) if asynchronous else compiled.invoke(given, config)

    with pytest.raises(QuorumLost):
        call(start())
    answer = call(None)
    assert [message.type for message in answer["messages"]] == ["human", *["ai", "human"] * 4]
    assert "broke off before" in caplog.text
    assert World.open == 0
    follow_up = call({"messages": [HumanMessage("again")]})
    assert len(follow_up["messages"]) > 9


@pytest.mark.thorough
def test_every_point_of_a_threads_history_can_be_resumed():
    wrapped = graph(checkpointer=InMemorySaver(), seed=1)
    config = {"configurable": {"thread_id": "t"}}
    wrapped.invoke(start(), config)
    history = list(wrapped.get_state_history(config))
    assert {state.next for state in history} >= {("propagate",), ("weigh",), ("resample",), ("finalize",)}
    for state in history:
        answer = wrapped.invoke(None, state.config)
        assert len(answer["messages"]) == 9


@variants("pause", ["propagate", "weigh", "resample", "finalize"])
def test_a_paused_run_restarts(pause):
    wrapped = graph(checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "t"}}
    wrapped.invoke(start(), config, interrupt_before=[pause])
    assert SumWorld.open == 0
    assert len(wrapped.invoke(None, config)["messages"]) == 9
