"""Custom events that agents write while they run as particles."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from amc_agents import effect
from amc_agents.population.features.agent_events import CustomEvents
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from tests.population.worlds import ReturnSoFar, start, sum_world, tool_caller
from tests.variants import variants


@tool
@effect("world")
async def say(number: int) -> str:
    """Say a number and stream it."""
    get_stream_writer()({"said": number})
    return "said"


def events_of(stream):
    return [event for event in stream if event["type"] == "amc.event"]


def graph():
    agent = create_agent(tool_caller(3), [say])
    return amc(agent, ReturnSoFar(), environment=sum_world, n_particles=4, resample=AtSteps(2), seed=0)


def check(events, run):
    assert [event["type"] for event in events].count("amc.weigh") == 2
    before, after = events[: (at := next(i for i, e in enumerate(events) if e["type"] == "amc.weigh"))], events[at:]
    assert sorted((e["particle"], e["step"]) for e in before) == [(i, step) for i in range(4) for step in (0, 1)]
    assert sorted((e["particle"], e["step"]) for e in events_of(after)) == [(i, 2) for i in range(4)]
    last = {e["particle"]: e["event"] for e in events_of(after)}
    numbers = [output["messages"][-3].tool_calls[0]["args"]["number"] for output in run.outputs]
    assert [last[i]["said"] for i in range(4)] == numbers


async def test_events_carry_the_particle_and_its_step():
    events = [event async for event in graph().astream(start(), stream_mode="custom")]
    check(events, (await graph().arun(start())))
    check(list(graph().stream(start(), stream_mode="custom")), graph().run(start()))


async def test_events_pass_through_a_surrounding_graph_with_subgraphs():
    builder = StateGraph(MessagesState)
    builder.add_node("team", graph())
    builder.add_edge(START, "team")
    outer = builder.compile()
    heard = [item async for item in outer.astream(start(), stream_mode="custom", subgraphs=True)]
    assert len(events_of(event for _, event in heard)) == 12
    assert len({namespace for namespace, _ in heard}) == 1


async def test_events_are_streamed_as_they_happen():
    heard = asyncio.Event()

    @tool
    @effect("read")
    async def wait(number: int) -> str:
        """Stream an event and wait until it has been read."""
        get_stream_writer()("speaking")
        await asyncio.wait_for(heard.wait(), 30)
        return "heard"

    model = tool_caller(1)
    wait.name = "say"
    run = None
    async for event in amc(create_agent(model, [wait]), "uniform", n_particles=2).astream(
        start(), stream_mode="custom"
    ):
        if event["type"] == "amc.event":
            heard.set()
        run = event.get("run", run)
    assert run.best.steps[0].observation == "heard"


@pytest.mark.parametrize(
    ("stream_mode", "listened"), [("custom", True), (["values", "custom"], True), ("values", False)]
)
async def test_agents_stream_custom_events_only_to_a_reader(monkeypatch, stream_mode, listened):
    modes = []

    def astream(self, *args, **kwargs):
        modes.append(kwargs["stream_mode"])
        return original(self, *args, **kwargs)

    original = CompiledStateGraph.astream
    wrapped = graph()
    monkeypatch.setattr(CompiledStateGraph, "astream", astream)
    async for _ in wrapped.astream(start(), stream_mode=stream_mode):
        pass
    of_particles = modes[1:]
    assert len(of_particles) >= 4
    assert {"custom" in mode for mode in of_particles} == {listened}


@variants("way", ["run", "arun"])
def test_run_and_arun_do_not_listen_to_particles(way, monkeypatch):
    listeners = []
    monkeypatch.setattr(CustomEvents, "__init__", lambda self, writer: listeners.append(writer))
    monkeypatch.setattr(CustomEvents, "on_output", lambda self, particle, mode, chunk: None)
    wrapped = graph()
    run = wrapped.run(start()) if way == "run" else asyncio.run(wrapped.arun(start()))
    assert len(run.history) == 2
    assert listeners == []
    list(wrapped.stream(start(), stream_mode="custom"))
    assert len(listeners) == 1
