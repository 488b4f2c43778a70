"""An `amc` graph as a sub-agent of a deep agent."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("deepagents")

from deepagents import create_deep_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph

from amc_agents import AmcSettings, AtSteps, amc, effect
from amc_agents.models.seeding import particle_rng
from amc_agents.testing import ScriptedChatModel

QUESTION = {"messages": [("user", "Which digit is large?")]}
SUBTASK = "Say digits, the larger the better."
N_DIGITS = 3


@effect("read")
def tools(state):
    """Say a random digit."""
    return {"messages": [AIMessage(f"Action: {particle_rng().integers(10)}"), HumanMessage("go on")]}


def report(state):
    """Report the digits."""
    return {"messages": [AIMessage(f"digits {digits_of(state['messages'])}")]}


def digits_of(messages):
    return [int(message.text[-1]) for message in messages if message.text.startswith("Action: ")]


def large_digits(trajectories):
    """A critic: the mean of the digits."""
    return [
        sum(int(step.action[-1]) for step in path.steps if step.action.isdigit()) / N_DIGITS for path in trajectories
    ]


def searcher(**settings):
    builder = StateGraph(MessagesState).add_node("tools", tools).add_node("report", report)
    builder.add_edge(START, "tools").add_edge("report", END)
    builder.add_conditional_edges(
        "tools", lambda state: "report" if len(digits_of(state["messages"])) == N_DIGITS else "tools"
    )
    given = {"n_particles": 4, "resample": AtSteps(1, 2), "beta": 0.1, "seed": 3, **settings}
    return amc(builder.compile(), large_digits, **given)


def delegate(messages):
    """Delegate once, then repeat the answer."""
    if isinstance(messages[-1], ToolMessage):
        return f"They say: {messages[-1].text}"
    task = {"description": SUBTASK, "subagent_type": "searcher"}
    return AIMessage("", tool_calls=[{"name": "task", "args": task, "id": "call-1"}])


def deep_agent(graph, **settings):
    sub = {"name": "searcher", "description": "Searches with particles.", "runnable": graph}
    return create_deep_agent(model=ScriptedChatModel(respond=delegate), subagents=[sub], **settings)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_deep_agent_delegates_to_a_population(asynchronous):
    agent = deep_agent(searcher(), checkpointer=InMemorySaver())
    config = {"configurable": {"thread_id": "a"}}
    output = asyncio.run(agent.ainvoke(QUESTION, config)) if asynchronous else agent.invoke(QUESTION, config)
    with searcher().run({"messages": [HumanMessage(SUBTASK)]}) as run:
        expected = run.best_output["messages"][-1].text
        assert len(run.history) == 3
    assert output["messages"][-1].text == f"They say: {expected}"
    assert [message.type for message in output["messages"]] == ["human", "ai", "tool", "ai"]


def test_the_population_streams_what_is_settled_as_a_subgraph():
    events = [
        *deep_agent(searcher(settings=AmcSettings(emit="settled"))).stream(
            QUESTION, stream_mode=["messages", "custom"], subgraphs=True
        )
    ]
    shown = [chunk[0] for namespace, mode, chunk in events if mode == "messages" and namespace]
    run = next(event["run"] for _, mode, event in events if mode == "custom" and event["type"] == "amc.run")
    ids = [message.id for message in shown if message.id in {answer.id for answer in run.best_output["messages"]}]
    assert ids == [message.id for message in run.best_output["messages"][1:]]
