"""However a run of `amc` ends, every world is closed exactly once."""

import asyncio
import gc
import signal
import threading
import time
from contextlib import aclosing
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, MessagesState, StateGraph

from amc_agents.concurrency.background import run_in_background
from amc_agents.errors import AgentContractError
from amc_agents.population.wrap import amc
from amc_agents.runtime import world as world_module
from amc_agents.runtime.effects import effect
from amc_agents.runtime.world import current_environment
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.worlds import TASK, ReturnSoFar, SumWorld, number_agent, start
from tests.variants import variants


class CountedWorld(SumWorld):
    """A world of 30 steps that counts all calls of `close`."""

    closings = 0

    def __init__(self, length=30):
        super().__init__(length)

    async def close(self):
        type(self).closings += 1
        await super().close()


def counted(**methods):
    """Create a class of worlds with its own counters."""
    return type("World", (CountedWorld,), {"made": 0, "open": 0, "closings": 0, **methods})


def graph_of(world, *, resample=None, n_particles=6, delay=0.0, **settings):
    return amc(number_agent(delay=delay), ReturnSoFar(), environment=lambda state: (world(), TASK), beta=5.0, seed=1,
               n_particles=n_particles, resample=resample or AtSteps(1, 2), **settings)  # fmt: skip


def assert_all_closed_once(world):
    assert world.made > 0
    assert (world.open, world.closings) == (0, world.made)


async def until(condition):
    """Wait until the condition holds."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


# --- the reader leaves --------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["updates", "values", "custom", "messages", ["updates", "custom"]])
async def test_a_reader_that_leaves_the_async_stream_closes_every_world(mode):
    world = counted()
    async with aclosing(graph_of(world).astream(start(), stream_mode=mode)) as events:
        async for _ in events:
            if world.made:
                break
    assert_all_closed_once(world)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["updates", "values", "custom", "messages", ["updates", "custom"]])
def test_a_reader_that_leaves_the_sync_stream_closes_every_world(mode):
    world = counted()
    events = graph_of(world).stream(start(), stream_mode=mode)
    for _ in events:
        if world.made:
            break
    events.close()
    assert_all_closed_once(world)


async def test_an_abandoned_stream_closes_every_world():
    world = counted()
    async for _ in graph_of(world).astream(start(), stream_mode="custom"):
        break
    gc.collect()
    await until(lambda: world.open == 0)
    assert_all_closed_once(world)


@pytest.mark.thorough  # quick: test_an_abandoned_stream_closes_every_world
def test_a_sync_stream_collected_on_the_background_loop_closes_every_world():
    world = counted()
    events = graph_of(world).stream(start(), stream_mode="updates")
    assert "init" in next(events)

    async def collect():
        nonlocal events
        del events
        gc.collect()
        await until(lambda: world.open == 0)

    run_in_background(collect(), n_workers=1)
    assert_all_closed_once(world)


@pytest.mark.thorough  # quick: test_an_abandoned_stream_closes_every_world
async def test_leaving_astream_events_closes_every_world():
    world = counted()
    async for event in graph_of(world).astream_events(start(), version="v2"):
        if event["name"] == "weigh":
            break
    gc.collect()
    await until(lambda: world.open == 0)
    assert_all_closed_once(world)


# --- the outer graph ends -----------------------------------------------------------------------------------


@variants("limit", range(2, 9))
def test_the_outer_recursion_limit_closes_every_world(limit):
    world = counted()
    graph = graph_of(world, resample=EveryStep(), n_particles=3)
    with pytest.raises(GraphRecursionError):
        asyncio.run(graph.arun(start(), {"recursion_limit": limit}))
    with pytest.raises(GraphRecursionError):
        graph.run(start(), {"recursion_limit": limit})
    assert_all_closed_once(world)


@pytest.mark.parametrize("pause", [{"interrupt_before": ["resample"]}, {"interrupt_after": ["init"]},
                                   {"interrupt_before": "*"}])  # fmt: skip
def test_an_interrupt_of_the_outer_graph_closes_every_world(pause):
    for asynchronous in (True, False):
        world = counted()
        graph = graph_of(world, checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t"}}
        if asynchronous:
            asyncio.run(graph.ainvoke(start(), config, **pause))
        else:
            graph.invoke(start(), config, **pause)
        assert (world.open, world.closings) == (0, world.made)


@pytest.mark.thorough
async def test_nested_and_configured_graphs_close_their_own_worlds():
    world = counted()
    outer = StateGraph(MessagesState)
    outer.add_node("amc", graph_of(world).with_config(tags=["inner"]))
    outer.add_edge(START, "amc")
    outer.add_edge("amc", END)
    compiled = outer.compile()
    async for _ in compiled.astream(start(), stream_mode="custom", subgraphs=True):
        break
    gc.collect()
    await until(lambda: world.open == 0)
    assert_all_closed_once(world)
    for _ in compiled.stream(start(), stream_mode="custom", subgraphs=True):
        break
    gc.collect()
    assert_all_closed_once(world)
    await compiled.ainvoke(start())
    await compiled.abatch([start(), start()])
    assert_all_closed_once(world)


@pytest.mark.thorough
def test_copies_of_the_graph_close_their_worlds():
    # A server gives the graph its own checkpointer by `copy`.
    world = counted()
    copied = graph_of(world).copy(update={"checkpointer": InMemorySaver()})
    for _ in copied.stream(start(), {"configurable": {"thread_id": "t"}}):
        break
    with pytest.raises(GraphRecursionError):
        graph_of(world).with_config(tags=["t"]).with_retry(stop_after_attempt=2).invoke(start(), {"recursion_limit": 4})
    gc.collect()
    assert_all_closed_once(world)


# --- worlds that cannot be created -----------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("last", [1, 4, 8])
def test_a_failing_fork_closes_the_earlier_worlds(last, asynchronous):
    # The 8th world is made by the first resampling, beside others.
    async def fork(self, seed):
        if world.made >= last:
            raise RuntimeError("no more containers")
        return await SumWorld.fork(self, seed)

    world = counted(fork=fork)
    graph = graph_of(world)
    with pytest.raises(RuntimeError, match="no more containers"):
        asyncio.run(graph.arun(start())) if asynchronous else graph.run(start())
    assert world.made >= last
    assert_all_closed_once(world)


@pytest.mark.parametrize("method", ["reset", "step"])
def test_a_world_that_fails_is_closed(method):
    async def fail(self, *_):
        raise RuntimeError("broken")

    world = counted(**{method: fail})
    with pytest.raises(Exception, match="broken"):
        graph_of(world).run(start())
    assert_all_closed_once(world)


@pytest.mark.parametrize("n_made", [1, 3, 9])
async def test_a_fork_in_progress_at_a_cancellation_is_closed(n_made):
    # The new world exists, but its fork has not returned yet.
    forking, go_on = asyncio.Event(), asyncio.Event()

    async def fork(self, seed):
        copy = await SumWorld.fork(self, seed)
        if world.made >= n_made:
            forking.set()
            await go_on.wait()
        return copy

    world = counted(fork=fork)
    running = asyncio.create_task(graph_of(world).ainvoke(start()))
    await forking.wait()
    running.cancel()
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_all_closed_once(world)


async def test_a_first_world_in_progress_at_a_cancellation_is_closed():
    making, go_on = asyncio.Event(), asyncio.Event()

    async def environment(state):
        made = world()
        making.set()
        await go_on.wait()
        return made, TASK

    world = counted()
    graph = amc(number_agent(), environment=environment, n_particles=2)
    running = asyncio.create_task(graph.ainvoke(start()))
    await making.wait()
    running.cancel()
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_all_closed_once(world)


async def test_a_fork_that_never_returns_does_not_block_a_cancelled_run(monkeypatch, caplog):
    monkeypatch.setattr(world_module, "CLOSING_LIMIT_S", 0.01)
    forking = asyncio.Event()

    async def fork(self, seed):
        forking.set()
        await asyncio.Event().wait()

    world = counted(fork=fork)
    running = asyncio.create_task(graph_of(world).ainvoke(start()))
    await forking.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_all_closed_once(world)
    assert "neither created nor closed within" in caplog.text


@pytest.mark.thorough
async def test_a_run_cancelled_at_any_time_closes_every_world():
    for moment in range(40):
        world = counted()
        running = asyncio.create_task(graph_of(world, n_particles=3, delay=0.001).ainvoke(start()))
        for _ in range(moment**2):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert (world.open, world.closings) == (0, world.made)


async def test_a_second_cancellation_does_not_interrupt_closing():
    closing, go_on = asyncio.Event(), asyncio.Event()

    async def close(self):
        closing.set()
        await go_on.wait()
        await CountedWorld.close(self)

    world = counted(close=close)
    running = asyncio.create_task(graph_of(world, delay=10.0).ainvoke(start()))
    await until(lambda: world.made == 6)
    running.cancel()
    await closing.wait()
    running.cancel()
    asyncio.get_running_loop().call_later(0.01, go_on.set)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert_all_closed_once(world)


@pytest.fixture
def interrupted_by_ctrl_c():
    """A shell starts its background jobs with SIGINT ignored, and Python then leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupted_by_ctrl_c")
def test_ctrl_c_in_a_sync_caller_closes_every_world(caplog):
    async def step(self, action):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        await asyncio.Event().wait()

    world = counted(step=step)
    with pytest.raises(KeyboardInterrupt):
        graph_of(world, n_particles=1).invoke(start())
    assert_all_closed_once(world)
    assert "an agent could not be stopped" not in caplog.text


# --- worlds that cannot be closed ---------------------------------------------------------------------------


@variants("resample", [Never(), AtSteps(1)])
@variants("asynchronous", [True, False])
@variants("kind", [ConnectionResetError, asyncio.CancelledError])
def test_a_failing_close_is_only_a_note(resample, asynchronous, kind, caplog):
    async def close(self):
        await CountedWorld.close(self)
        if type(self).closings == 1:
            raise kind("the container is gone")

    world, flawless = counted(close=close), counted()
    graph = graph_of(world, resample=resample, horizon=3)
    run = asyncio.run(graph.arun(start())) if asynchronous else graph.run(start())
    run.close()
    assert run.best.return_ == graph_of(flawless, resample=resample, horizon=3).run(start()).best.return_
    assert f"worlds that could not be closed: 1 ({kind.__name__}: the container is gone)" in run.notes
    assert "the container is gone" in caplog.text
    assert_all_closed_once(world)


def test_a_close_that_never_returns_is_a_note(monkeypatch):
    monkeypatch.setattr(world_module, "CLOSING_LIMIT_S", 0.01)

    async def close(self):
        await CountedWorld.close(self)
        await asyncio.Event().wait()

    world = counted(close=close)
    run = graph_of(world, horizon=3).run(start())
    run.close()
    assert f"worlds that could not be closed: {world.made - 1} (TimeoutError: no answer within 0.01 s)" in run.notes
    assert_all_closed_once(world)


def test_forks_that_share_one_world_close_it_once():
    class Stateless(CountedWorld):
        made = open = closings = 0

        async def fork(self, seed):
            return self

        async def step(self, action):
            assert not self.closed
            return await super().step(action)

    run = graph_of(Stateless, horizon=3).run(start())
    assert (Stateless.made, Stateless.closings) == (1, 0)
    run.close()
    assert run.history[0].ancestors is not None
    assert (Stateless.made, Stateless.closings) == (1, 1)


@variants("asynchronous", [False, True])
def test_a_world_stays_open_for_a_tool_in_a_thread_that_outlives_its_particle(asynchronous):
    found = []

    class Kept(CountedWorld):
        made = open = closings = 0

    @tool
    @effect("world")
    def work() -> str:
        """Work for a while."""
        world: Any = current_environment()
        get_stream_writer()("begun")
        time.sleep(0.1)
        found.append(world.inner.closed)
        return "worked"

    respond = lambda messages: AIMessage("", tool_calls=[{"name": "work", "args": {}, "id": "w"}])  # noqa: E731
    agent = create_agent(ScriptedChatModel(respond=respond), [work])
    graph: Any = amc(agent, environment=lambda state: (Kept(), TASK), n_particles=1)

    async def leave():
        async with aclosing(graph.astream(start(), stream_mode="custom")) as events:
            await anext(events)

    if asynchronous:
        asyncio.run(leave())
    else:
        events = graph.stream(start(), stream_mode="custom")
        next(events)
        events.close()
    assert found == [False]
    assert_all_closed_once(Kept)


def test_a_tool_that_hangs_does_not_keep_its_world_open(monkeypatch):
    monkeypatch.setattr(world_module, "UNUSED_LIMIT_S", 0.01)
    released, world = threading.Event(), counted()

    @tool
    @effect("world")
    def work() -> str:
        """Hang."""
        get_stream_writer()("begun")
        released.wait(10)
        return "worked"

    respond = lambda messages: AIMessage("", tool_calls=[{"name": "work", "args": {}, "id": "w"}])  # noqa: E731
    agent = create_agent(ScriptedChatModel(respond=respond), [work])
    graph: Any = amc(agent, environment=lambda state: (world(), TASK), n_particles=1)
    events = graph.stream(start(), stream_mode="custom")
    next(events)
    events.close()
    assert_all_closed_once(world)
    released.set()


def test_a_graph_compiled_again_from_the_builder_is_refused():
    world = counted()
    with pytest.raises(AgentContractError, match=r"run the graph that amc\(\) returned"):
        graph_of(world).builder.compile().invoke(start())
    assert world.made == 0
