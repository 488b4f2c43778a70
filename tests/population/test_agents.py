"""The agents that `amc` accepts and refuses."""

import asyncio
import operator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import interrupt
from pydantic import BaseModel

from amc_agents import AmcSettings
from amc_agents.errors import AgentContractError
from amc_agents.population.wrap import amc
from amc_agents.runtime.effects import effect
from amc_agents.smc import AtSteps, Never
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Step, Task, Trajectory
from tests.population.worlds import (
    ReturnSoFar,
    say,
    say_nothing,
    start,
    sum_world,
    tool_caller,
)


def test_a_tool_node_inside_a_subgraph_needs_step_after():
    inner = StateGraph(MessagesState)
    inner.add_node("act", ToolNode([say_nothing]))
    inner.add_edge(START, "act")
    outer = StateGraph(MessagesState)
    outer.add_node(
        "model",
        lambda state: {"messages": [AIMessage("hm", tool_calls=[{"name": "say_nothing", "args": {}, "id": "1"}])]},
    )
    outer.add_node("worker", inner.compile())
    outer.add_edge(START, "model")
    outer.add_edge("model", "worker")
    agent = outer.compile()
    with pytest.raises(AgentContractError, match="say_nothing"):
        amc(agent, step_after=["worker"])
    with pytest.raises(AgentContractError, match=r"silent|nothing can be resampled.*model, worker"):
        amc(agent, stateless_tools=True)
    with pytest.raises(AgentContractError, match=r"nowhere.*model, worker"):
        amc(agent, stateless_tools=True, step_after=["nowhere"])
    with pytest.raises(AgentContractError, match=r"step_after names nowhere;"):
        amc(agent, stateless_tools=True, step_after="nowhere")
    for named in (["worker"], "worker"):
        graph = amc(agent, "uniform", stateless_tools=True, step_after=named, n_particles=2, resample=Never())
        assert graph.run(start()).best.steps[0].observation == "nothing"


def test_an_uncompiled_graph_is_refused():
    with pytest.raises(AgentContractError, match="compiled graph"):
        amc(StateGraph(MessagesState))


def test_a_workflow_of_the_functional_api_is_refused_with_advice():
    @entrypoint()
    def workflow(messages):
        return messages

    with pytest.raises(AgentContractError, match=r"an @entrypoint workflow.*node of a StateGraph.*docs/amc.md"):
        amc(workflow)


def test_compile_time_interrupts_are_refused():
    agent = create_agent(tool_caller(1), [say_nothing], interrupt_before=["tools"])
    with pytest.raises(AgentContractError, match="interrupt_before"):
        amc(agent, stateless_tools=True)


def test_an_interrupt_inside_the_agent_is_refused_without_a_checkpointer():
    @tool
    def ask_user(question: str) -> str:
        """Ask."""
        return interrupt(question)

    def respond(messages):
        return AIMessage("", tool_calls=[{"name": "ask_user", "args": {"question": "really?"}, "id": "1"}])

    agent = create_agent(ScriptedChatModel(respond=respond), [ask_user])
    with pytest.raises(AgentContractError, match=r"human input \('really\?'\)"):
        amc(agent, "uniform", stateless_tools=True, n_particles=2).run(start())


def test_an_agent_without_messages_needs_a_trajectory_function():
    class State(TypedDict):
        path: Annotated[list, operator.add]

    builder = StateGraph(State)
    builder.add_node("tools", effect("read")(lambda state: {"path": [len(state["path"])]}))
    builder.add_edge(START, "tools")
    builder.add_conditional_edges("tools", lambda state: END if len(state["path"]) > 3 else "tools")
    agent = builder.compile()
    with pytest.raises(AgentContractError, match=r"no `messages`.*path.*trajectory="):
        amc(agent, n_particles=2)

    def trajectory(state):
        return Trajectory(Task("t", "walk"), tuple(Step(str(p)) for p in state["path"]))

    critic = ReturnSoFar()
    run = amc(agent, critic, n_particles=2, resample=AtSteps(2), beta=1.0, settings=AmcSettings(trajectory=trajectory),
              reward=lambda state: float(len(state["path"]))).run({"path": []})  # fmt: skip
    assert critic.batches == [[2, 2]]
    assert run.history[0].ancestors is not None
    assert run.population.values.tolist() == [4.0, 4.0]
    assert len(run.best.steps) == 4


def test_parallel_tool_calls_are_one_step():
    agent = create_agent(tool_caller(2, parallel=3), [say])
    critic = ReturnSoFar()
    run = amc(agent, critic, environment=lambda s: sum_world(s, 100), n_particles=3, resample=AtSteps(1)).run(start())
    assert critic.batches == [[1, 1, 1]]
    assert all(len(trajectory.steps) == 3 for trajectory in run.population.trajectories)
    assert run.best.steps[0].observation.count("taken") == 3


def test_tools_act_on_their_particles_world():
    agent = create_agent(tool_caller(3), [say])
    run = amc(agent, environment=lambda s: sum_world(s, 100), n_particles=5, resample=Never(), seed=0).run(start())
    for trajectory in run.population.trajectories:
        assert trajectory.return_ == float(trajectory.steps[2].observation.removeprefix("taken "))
        assert trajectory.steps[-1].action.startswith("finished with")
    assert len({trajectory.return_ for trajectory in run.population.trajectories}) > 1


def test_checkpointer_is_the_agents_own_by_default():
    saver = InMemorySaver()
    agent = create_agent(tool_caller(1), [say_nothing], checkpointer=saver)
    assert amc(agent, stateless_tools=True).checkpointer is saver


class Fields(BaseModel):
    messages: Annotated[list[Any], add_messages] = []
    limit: int = 5


@dataclass
class Record:
    messages: Annotated[list[Any], add_messages] = field(default_factory=list)
    limit: int = 5


@pytest.mark.parametrize("schema", [Fields, Record])
def test_version_2_returns_the_class_of_the_state(schema):
    builder = StateGraph(schema)
    builder.add_node("reply", lambda state: {"messages": [AIMessage("hi")]})
    builder.add_edge(START, "reply")
    plain = builder.compile()
    graph = amc(plain, "uniform", n_particles=2, resample=Never(), step_after="reply", stateless_tools=True)
    asked = {"messages": [("user", "hello")]}

    def seen(called: Any) -> list[Any]:
        chunks = called.stream(asked, stream_mode="values", version="v2")
        outputs = called.invoke(asked, version="v2"), asyncio.run(called.ainvoke(asked, version="v2"))
        return [type(each) for each in (outputs[0].value, outputs[1].value, *(chunk["data"] for chunk in chunks))]

    assert seen(graph) == seen(plain) == [schema] * 4
