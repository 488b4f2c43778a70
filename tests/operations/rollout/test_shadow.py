import asyncio
import subprocess
import sys
import uuid

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from amc_agents import Budget, Task, current_environment, effect, use_environment
from amc_agents.errors import AgentContractError, ConfigurationError
from amc_agents.operations.rollout import canary, shadow
from amc_agents.runtime.metering import PolicyMeter, counting_requests
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import TimeStep
from amc_agents.usage import Meter, metering
from tests.operations.rollout.agents import HELLO, answering, thread


def said(state):
    return state["messages"][-1].text


def constant(trajectories):
    return [0.5] * len(trajectories)


def longest(trajectories):
    return [float(len(trajectory.steps)) for trajectory in trajectories]


class Shop:
    """A real world: it counts sales, and forks of it count their own."""

    def __init__(self, sales=0, forks=None):
        self.sales, self.forks, self.closed = sales, [] if forks is None else forks, False
        self.at_start = sales

    async def fork(self, seed):
        self.forks.append(Shop(self.sales, self.forks))
        return self.forks[-1]

    async def close(self):
        self.closed = True


class ShopWithSteps(Shop):
    """The same as an `Environment`: a reset would lose the sales."""

    async def reset(self, task):
        raise AssertionError("the world of a running agent must not be reset")

    async def step(self, action):
        self.sales += 1
        return TimeStep.transition(f"{self.sales} sold")

    async def fork(self, seed):
        self.forks.append(ShopWithSteps(self.sales, self.forks))
        return self.forks[-1]


refunds: list[int] = []


@tool
@effect("commit")
def refund(amount: int) -> str:
    """Refund an amount."""
    refunds.append(amount)
    return "refunded"


@tool
@effect("world")
async def sell() -> str:
    """Sell."""
    world = current_environment()
    world = getattr(world, "inner", world)
    world.sales += 1
    return f"{world.sales} sold"


def calling(*names, **options):
    """An agent that calls the tools in turn and then answers."""
    tools = {"refund": refund, "sell": sell}

    def respond(messages):
        last = max(i for i, message in enumerate(messages) if message.type == "human")
        done = sum(message.type == "tool" for message in messages[last:])
        if done == len(names):
            return "bye"
        args = {"amount": len(messages)} if names[done] == "refund" else {}
        return AIMessage("", tool_calls=[{"name": names[done], "args": args, "id": uuid.uuid4().hex}])

    return create_agent(ScriptedChatModel(respond=respond), [tools[name] for name in dict.fromkeys(names)], **options)


@pytest.fixture(autouse=True)
def no_refunds():
    refunds.clear()


def shadowed(agent, tmp_path, critic=constant, rate=1.0, **settings):
    return shadow(agent, critic, rate, folder=tmp_path, n_particles=4, seed=0, **settings)


@pytest.mark.thorough
@pytest.mark.parametrize("memory", [False, True], ids=["without memory", "with memory"])
async def test_all_ways_to_call_answer_as_the_bare_agent(tmp_path, memory):
    bare, agent = (calling("refund", checkpointer=InMemorySaver() if memory else None) for _ in range(2))
    graph = shadowed(agent, tmp_path)

    def texts(state):
        return [message.text for message in state["messages"]]

    for _ in range(2):
        assert texts(graph.invoke(HELLO, thread("t"))) == texts(bare.invoke(HELLO, thread("t")))
        assert texts(await graph.ainvoke(HELLO, thread("t"))) == texts(await bare.ainvoke(HELLO, thread("t")))
        streamed = [[texts(event) for event in each.stream(HELLO, thread("t"), stream_mode="values")]
                    for each in (graph, bare)]  # fmt: skip
        assert streamed[0] == streamed[1]
        astreamed = [[list(event) async for event in each.astream(HELLO, thread("t"))] for each in (graph, bare)]
        assert astreamed[0] == astreamed[1]
    await graph.aclose()
    report = graph.report()
    assert (report.n_searched, report.n_failed) == (8, 0)
    assert len(refunds) == 2 * 8


@pytest.mark.parametrize("options", [
    {"stream_mode": "updates"}, {"stream_mode": ["updates", "messages"]}, {"stream_mode": "values"},
    {"stream_mode": "messages"}, {"stream_mode": "updates", "subgraphs": True}, {"stream_mode": ["values", "updates"]},
    {"stream_mode": ["values"], "subgraphs": True}, {"stream_mode": "values", "subgraphs": True},
    {"stream_mode": ["updates"], "version": "v2"}, {"stream_mode": "values", "version": "v2"},
], ids=str)  # fmt: skip
def test_a_stream_has_the_events_that_were_asked_for(tmp_path, options):
    def shape(event):
        if isinstance(event, tuple):
            return tuple(map(shape, event))
        return sorted(event) if isinstance(event, dict) else event if isinstance(event, str) else type(event).__name__

    agent = calling("refund")
    graph = shadowed(agent, tmp_path)
    streamed = [[shape(event) for event in each.stream(HELLO, **options)] for each in (graph, agent)]
    assert streamed[0] == streamed[1]
    graph.close()
    assert graph.report().n_searched == 1


async def test_the_particles_stop_at_the_first_commit(tmp_path):
    graph = shadowed(calling("refund", "refund"), tmp_path)
    await graph.ainvoke(HELLO)
    await graph.aclose()
    report = graph.report()
    assert len(refunds) == 2
    assert (report.n_searched, report.at_door) == (1, 1.0)


async def test_the_particles_stop_before_a_commit_node_and_before_a_question(tmp_path):
    sent = []

    @effect("commit")
    def tools(state: MessagesState):
        sent.append(1)
        return {"messages": [AIMessage("sent")]}

    @effect("read")
    def ask(state: MessagesState):
        return {"messages": [AIMessage(interrupt("may I?"))]}

    committing = StateGraph(MessagesState).add_node(tools).add_edge(START, "tools").compile()
    asking = StateGraph(MessagesState).add_node("tools", ask).add_edge(START, "tools").compile(InMemorySaver())
    graph = shadowed(committing, tmp_path / "a")
    await graph.ainvoke(HELLO)
    await graph.aclose()
    assert (len(sent), graph.report().n_searched) == (1, 1)
    graph = shadowed(asking, tmp_path / "b")
    await graph.ainvoke(HELLO, thread("t"))
    assert said(await graph.ainvoke(Command(resume="yes"), thread("t"))) == "yes"
    await graph.aclose()
    assert dict(graph.report().counts) == {"calls": 2, "interrupted": 1, "resumed": 1}


@pytest.mark.parametrize("world", [Shop, ShopWithSteps])
@pytest.mark.parametrize("named", [False, True], ids=["use_environment", "environment="])
async def test_the_particles_act_on_forks_of_the_world_before_the_agent_acted(tmp_path, world, named):
    shop = world(5)
    graph = shadowed(calling("sell", "refund"), tmp_path, environment=(lambda _: (shop, Task("t", "sell"))) if named
                     else None)  # fmt: skip
    with use_environment(shop):
        await graph.ainvoke(HELLO)
        assert shop.sales == 6
        await graph.aclose()
    assert shop.sales == 6
    assert shop.at_start == 5
    assert shop.forks[0].at_start == 5
    assert len(shop.forks) == 3
    assert [fork.sales for fork in shop.forks] == [6] * 3
    assert all(fork.closed for fork in shop.forks)
    assert not shop.closed
    assert graph.report().failures == ()


async def test_the_search_starts_from_the_conversation_before_the_call(tmp_path):
    seen = []

    def critic(trajectories):
        seen.extend(trajectory.task.instruction for trajectory in trajectories)
        return [0.5] * len(trajectories)

    graph = shadowed(calling("refund", checkpointer=InMemorySaver()), tmp_path, critic)
    for text in ("first", "second"):
        await graph.ainvoke({"messages": [("user", text)]}, thread("t"))
    await graph.aclose()
    first, second = (text for i, text in enumerate(seen) if i == 0 or text != seen[i - 1])
    assert first == "first"
    assert "first" in second
    assert "bye" in second
    assert second.endswith("human: second")
    assert len((await graph.aget_state(thread("t"))).values["messages"]) == 8


async def test_writes_of_the_particles_never_reach_the_store(tmp_path):
    store = InMemoryStore()

    async def remember(state: MessagesState, *, store):
        await store.aput(("memory",), uuid.uuid4().hex, {"text": "x"})
        return {"messages": [AIMessage("noted")]}

    agent = StateGraph(MessagesState).add_node("tools", remember).add_edge(START, "tools").compile(store=store)
    graph = shadowed(agent, tmp_path, tools={"tools": "read"})
    await graph.ainvoke(HELLO)
    await graph.aclose()
    assert graph.report().n_searched == 1
    assert len(store.search(("memory",))) == 1


async def test_a_failure_of_the_shadow_is_counted_and_never_reaches_the_user(tmp_path):
    def failing(trajectories):
        raise RuntimeError("no critic today")

    class Unforkable(Shop):
        async def fork(self, seed):
            raise OSError("no snapshot today")

    graph = shadowed(calling("refund"), tmp_path / "a", failing)
    assert said(await graph.ainvoke(HELLO)) == "bye"
    await graph.aclose()
    report = graph.report()
    assert report.n_failed == 1
    assert "no critic today" in str(report)
    graph = shadowed(calling("sell"), tmp_path / "b")
    with use_environment(Unforkable()):
        assert said(await graph.ainvoke(HELLO)) == "bye"
    await graph.aclose()
    assert "not prepared: OSError: no snapshot today 1" in str(graph.report())


async def test_a_call_without_a_world_is_answered_and_counted(tmp_path):
    @tool
    @effect("world")
    def sell() -> str:
        """Sell without a world."""
        return "sold"

    model = ScriptedChatModel(respond=lambda messages: "bye")
    graph = shadowed(create_agent(model, [sell]), tmp_path)
    assert said(await graph.ainvoke(HELLO)) == "bye"
    await graph.aclose()
    assert graph.report().counts["no_world"] == 1


async def test_an_error_of_the_agent_reaches_the_user_and_is_not_searched_for(tmp_path):
    model = ScriptedChatModel(respond=lambda messages: RuntimeError("no model"))
    graph = shadowed(create_agent(model, [refund]), tmp_path)
    with pytest.raises(RuntimeError, match="no model"):
        await graph.ainvoke(HELLO)
    await graph.aclose()
    assert graph.report().counts["served_failed"] == 1


async def test_the_queue_is_bounded(tmp_path):
    released, entered = asyncio.Event(), asyncio.Event()

    async def critic(trajectories):
        entered.set()
        await released.wait()
        return [0.5] * len(trajectories)

    graph = shadowed(calling("refund"), tmp_path, critic, most_waiting=1)
    await graph.ainvoke(HELLO)
    await entered.wait()
    for _ in range(3):  # One waits, two are dropped.
        await graph.ainvoke(HELLO)
    released.set()
    await graph.aclose()
    report = graph.report()
    assert (report.counts["dropped"], report.n_searched) == (2, 2)


async def test_a_closed_shadow_answers_and_leaves_no_task(tmp_path):
    hanging, shop = asyncio.Event(), Shop()

    async def critic(trajectories):
        hanging.set()
        await asyncio.Event().wait()

    graph = shadowed(calling("sell"), tmp_path, critic)
    with use_environment(shop):
        await graph.ainvoke(HELLO)
        await graph.ainvoke(HELLO)
        await hanging.wait()
        await graph.aclose(timeout=0.0)
        assert said(await graph.ainvoke(HELLO)) == "bye"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert all(fork.closed for fork in shop.forks)
    report = graph.report()
    assert report.counts["sampled"] == 2
    assert "cancelled" in report.failures[0][0]


SCRIPT = """
import asyncio, sys, warnings
warnings.simplefilter("error")
sys.path[:0] = [{root!r}]
from amc_agents import shadow
from amc_agents.usage import Meter, metering
from tests.operations.rollout.agents import HELLO, answering
async def critic(trajectories):
    await asyncio.sleep(600)
graph = shadow(answering("bye"), critic, 1.0, folder={folder!r}, n_particles=3, tools={{"tools": "read"}})
if {asynchronous}:
    async def main():
        print((await graph.ainvoke(HELLO))["messages"][-1].text)
        await asyncio.sleep(0.1)
    asyncio.run(main())
else:
    print(graph.invoke(HELLO)["messages"][-1].text)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_process_ends_although_a_search_hangs(tmp_path, repository, asynchronous):
    script = SCRIPT.format(root=str(repository), folder=str(tmp_path), asynchronous=asynchronous)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "bye\n", "")


async def test_a_spent_budget_ends_the_sampling(tmp_path):
    graph = shadowed(calling("refund"), tmp_path, budget=Budget(calls=3))
    await graph.ainvoke(HELLO)
    await asyncio.sleep(0)
    await graph.shadow.background.aclose()
    graph.shadow.background.closed = False
    await graph.ainvoke(HELLO)
    await graph.aclose()
    assert graph.report().counts["over_budget"] == 1


def test_only_a_share_of_the_calls_is_sampled(tmp_path):
    graph = shadowed(answering("bye"), tmp_path, rate=0.2, tools={"tools": "read"})
    for _ in range(50):
        graph.invoke(HELLO)
    graph.close()
    counts = graph.report().counts
    assert counts["calls"] == 50
    assert 2 <= counts["sampled"] + counts.get("dropped", 0) <= 22


async def test_the_meters_around_a_shadow_do_not_count_its_searches(tmp_path):
    graph, meter = shadowed(calling("refund"), tmp_path), Meter()
    with counting_requests(PolicyMeter(meter)), metering(meter):
        await graph.ainvoke(HELLO)
    await graph.aclose()
    assert graph.report().n_searched == 1
    assert meter.read()["policy"].calls == 2


async def test_a_shadow_is_an_arm_of_a_canary(tmp_path):
    inner = shadowed(calling("refund"), tmp_path / "shadow")
    graph = canary(answering("plain"), inner, 1.0, folder=tmp_path)
    assert said(await graph.ainvoke(HELLO)) == "bye"
    await inner.aclose()
    graph.close()
    assert graph.rollout.records.calls()[0]["requests"] == 2
    assert inner.report().n_searched == 1


async def test_the_report_says_how_often_another_answer_would_have_been_chosen(tmp_path, command):
    # The served answer is valued least, so that every search finds a better answer; half of them equal it.
    drawn = iter(range(100))

    def respond(messages):
        return f"answer {next(drawn)}"

    def critic(trajectories):
        return [float(trajectory.steps[-1].action.split()[-1]) for trajectory in trajectories]

    agent = create_agent(ScriptedChatModel(respond=respond), [refund])
    graph = shadowed(agent, tmp_path, critic)
    run_id = uuid.uuid4()
    await graph.ainvoke(HELLO, {"run_id": run_id})
    graph.outcome(str(run_id), 1.0)
    await graph.aclose()
    report = graph.report()
    assert (report.differs, report.at_door, report.n_outcomes) == (1.0, 0.0, 1)
    assert report.bias == -1.0
    code, printed, _ = command("shadow", "report", tmp_path)
    assert code == 0
    assert "verdict: not yet" in printed
    assert "AMC would have answered differently in 100% of 1 searches" in printed


def test_bad_arguments_are_refused_by_name(tmp_path):
    agent = calling("refund")
    with pytest.raises(ConfigurationError, match="rate must lie in"):
        shadow(agent, constant, 1.5, folder=tmp_path)
    with pytest.raises(ConfigurationError, match="n_particles must be"):
        shadow(agent, constant, folder=tmp_path, n_particles=1)
    with pytest.raises(ConfigurationError, match="takes no rewards"):
        shadow(agent, constant, folder=tmp_path, rewards=False)
    with pytest.raises(AgentContractError, match="wraps a compiled graph"):
        shadow("agent", constant, folder=tmp_path)  # type: ignore[arg-type]
    with pytest.raises(AgentContractError, match="Declare their effects"):
        shadow(answering("bye"), constant, folder=tmp_path)
    with pytest.raises(ConfigurationError, match="expected a number from -inf"):
        shadow(agent, constant, folder=tmp_path).outcome("t", float("nan"))
