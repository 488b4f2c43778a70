"""A commit call runs once however its agent retries, fails or is late; the ledger lies outside of the process."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Thread

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, ToolRetryMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy

from amc_agents import Deferred, Retried, effect
from amc_agents.errors import AgentContractError, CommitError
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import Ledger, call, plain_loop, results, start
from tests.variants import variants


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.db")


def wrap(agent, **settings):
    given = {"n_particles": 3, "resample": AtSteps(1), "seed": 1, "stateless_tools": True, **settings}
    return amc(agent, "uniform", **given)


def asks_for(*calls):
    """A policy that makes these calls in one message, then answers."""

    def respond(messages):
        return "done" if results(messages) else AIMessage("", tool_calls=list(calls))

    return respond


PAY = asks_for(call("pay", "p", n=1))


def paying(ledger, kind="commit", *, fails=99, before_s=0.0):
    """A tool that pays, and loses the bank's answer so many times."""

    @tool
    @effect(kind)
    def pay(n: int) -> str:
        """Pay."""
        time.sleep(before_s)
        ledger.add("pay", n=n)
        if len(ledger.rows("pay")) <= fails:
            raise ConnectionError("no answer")
        return f"paid {n}"

    return pay


def apaying(ledger, seconds):
    """An async tool that pays after so many seconds."""

    @tool
    @effect("commit")
    async def pay(n: int) -> str:
        """Pay."""
        await asyncio.sleep(seconds)
        ledger.add("pay", n=n)
        return f"paid {n}"

    return pay


@pytest.mark.thorough  # waits; quick: test_a_commit_is_awaited_when_its_particle_fails_meanwhile
@variants("sync", [True, False])
async def test_a_time_limit_does_not_end_a_commit_that_has_begun(ledger, sync):
    pay = paying(ledger, fails=0, before_s=0.4) if sync else apaying(ledger, 0.4)
    run = await wrap(create_agent(ScriptedChatModel(respond=PAY), [pay]), step_timeout=0.2).arun(start())
    assert [commit.status for commit in run.commits] == ["ran"]
    assert ledger.rows("pay") == [{"n": 1}]


@variants("sync", [True, False])
async def test_a_commit_is_awaited_when_its_particle_fails_meanwhile(ledger, sync):
    """Otherwise another particle, which knows nothing of it, would pay again."""
    pay = paying(ledger, fails=0, before_s=0.4) if sync else apaying(ledger, 0.4)

    async def act(state):
        [wanted] = state["messages"][-1].tool_calls
        running = asyncio.create_task(pay.ainvoke({**wanted, "type": "tool_call"}))
        await asyncio.wait([running], timeout=0.1)
        if not running.done():
            raise RuntimeError("lost")
        return {"messages": [running.result()]}

    with pytest.raises(CommitError, match=r"pay\(n=1\): ran.* lost"):
        await wrap(as_node(act)).arun(start())
    assert ledger.rows("pay") == [{"n": 1}]


class CutsOff(AgentMiddleware):
    """A middleware with a time limit of its own, which cancels the tool, and may try again."""

    def __init__(self, tries):
        self.tries = tries

    async def awrap_tool_call(self, request, handler):
        for _ in range(self.tries):
            try:
                return await asyncio.wait_for(handler(request), 0.1)
            except TimeoutError:
                continue
        return ToolMessage("it took too long", tool_call_id=request.tool_call["id"])


@variants("tries", [1, 3])
async def test_a_commit_that_its_agent_cuts_off_may_have_run_stops_the_search_and_is_asked(ledger, tries):
    @tool
    @effect("commit")
    async def pay(n: int) -> str:
        """Pay, and wait for the bank's answer."""
        ledger.add("pay", n=n)
        await asyncio.sleep(30)
        return "paid"

    agent = create_agent(ScriptedChatModel(respond=PAY), [pay], middleware=[CutsOff(tries)])
    graph, thread = wrap(agent, checkpointer=InMemorySaver()), {"configurable": {"thread_id": "cut"}}
    with pytest.raises(CommitError, match=r"pay\(n=1\): may have run"):
        await graph.ainvoke(start(), thread)
    asked = await graph.ainvoke(None, thread)
    assert asked["__interrupt__"][0].value["args"] == {"n": 1}
    run = await graph.arun(Command(resume={"ran": "paid, says the bank"}), thread)
    assert [commit.status for commit in run.commits] == ["answered"]
    assert results(run.best_output["messages"])[0].content == "paid, says the bank"
    assert ledger.rows("pay") == [{"n": 1}]


@pytest.mark.thorough  # threads; quick: test_code_that_catches_all_does_not_lose_a_commit
async def test_a_commit_in_a_thread_that_its_agent_no_longer_waits_for_runs_once(ledger):
    agent = create_agent(
        ScriptedChatModel(respond=PAY), [paying(ledger, fails=0, before_s=0.3)], middleware=[CutsOff(3)]
    )
    with pytest.raises(CommitError, match=r"pay\(n=1\): ran"):
        await wrap(agent).arun(start())
    assert ledger.rows("pay") == [{"n": 1}]


RETRYING = ToolRetryMiddleware(max_retries=3, initial_delay=0.001, jitter=False)


def in_middleware(pay):
    return create_agent(ScriptedChatModel(respond=PAY), [pay], middleware=[RETRYING])


def as_node(node, **options):
    model = ScriptedChatModel(respond=PAY)
    builder = StateGraph(MessagesState)
    builder.add_node("agent", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", node, **options)
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", tools_condition)
    builder.add_edge("tools", "agent")
    return builder.compile()


POLICY = RetryPolicy(max_attempts=4, initial_interval=0.001, jitter=False, retry_on=Exception)


def in_retried_node(pay):
    return as_node(ToolNode([pay]), retry_policy=POLICY)


def in_with_retry(pay):
    retried = pay.with_retry(stop_after_attempt=4, wait_exponential_jitter=False)

    def act(state):
        [wanted] = state["messages"][-1].tool_calls
        return {"messages": [ToolMessage(retried.invoke(wanted["args"]), tool_call_id=wanted["id"])]}

    return as_node(act)


@variants("build", [in_middleware, in_retried_node, in_with_retry])
async def test_a_commit_that_acted_and_failed_is_not_run_again_by_a_retry(ledger, build, monkeypatch):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    graph = wrap(build(paying(ledger)))
    if build is in_middleware:  # It makes a message of the last error.
        run = await graph.arun(start())
        assert [commit.status for commit in run.commits] == ["failed"]
        assert "ConnectionError" in results(run.best_output["messages"])[0].content
    else:
        with pytest.raises(CommitError, match=r"pay\(n=1\): failed \(ConnectionError: no answer\)"):
            await graph.arun(start())
    assert ledger.rows("pay") == [{"n": 1}]


@variants("build", [in_middleware, in_retried_node, in_with_retry])
@variants("attempts", [2, 3])
async def test_a_retried_commit_runs_as_often_as_declared_and_each_attempt_is_recorded(
    ledger, build, attempts, monkeypatch
):
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda seconds: None)
    graph = wrap(build(paying(ledger, Retried(attempts), fails=2)))
    if attempts == 3:
        run = await graph.arun(start())
        assert [commit.status for commit in run.commits] == ["failed", "failed", "ran"]
        assert results(run.best_output["messages"])[0].content == "paid 1"
    elif build is in_middleware:
        run = await graph.arun(start())
        assert [commit.status for commit in run.commits] == ["failed", "failed"]
    else:
        with pytest.raises(CommitError, match="failed"):
            await graph.arun(start())
    assert ledger.rows("pay") == [{"n": 1}] * attempts


async def test_a_commit_of_a_node_that_fails_after_it_is_not_repeated(ledger):
    """LangGraph runs the node again within its superstep; the tool's call has no id."""
    pay, visits = paying(ledger, fails=0), []

    def act(state):
        [wanted] = state["messages"][-1].tool_calls
        answer = pay.invoke(wanted["args"])
        visits.append(answer)
        if len(visits) < 3:
            raise ConnectionError("after the payment")
        return {"messages": [ToolMessage(answer, tool_call_id=wanted["id"])]}

    run = await wrap(as_node(act, retry_policy=POLICY)).arun(start())
    assert ledger.rows("pay") == [{"n": 1}]
    assert visits == ["paid 1"] * 3
    assert len(run.commits) == 1


async def test_equal_calls_by_code_are_calls_of_their_own(ledger):
    pay = paying(ledger, fails=0)

    def act(state):
        answers = [pay.invoke({"n": 1}) for _ in range(2)]
        return {"messages": [ToolMessage(", ".join(answers), tool_call_id="p")]}

    run = await wrap(as_node(act)).arun(start())
    assert ledger.rows("pay") == [{"n": 1}] * 2
    assert [commit.status for commit in run.commits] == ["ran", "ran"]


async def test_a_commit_node_that_fails_is_not_run_again_by_its_policy(ledger):
    @effect("commit")
    def act(state):
        ledger.add("pay", n=1)
        raise ConnectionError("no answer")

    with pytest.raises(CommitError, match="no answer"):
        await wrap(as_node(act, retry_policy=POLICY), stateless_tools=False).arun(start())
    assert ledger.rows("pay") == [{"n": 1}]


@variants("errors_are_messages", [True, False])
async def test_a_failure_among_three_commits_of_one_message_repeats_none(ledger, errors_are_messages):
    @tool
    @effect("commit")
    async def pay(n: int) -> str:
        """Pay; the second payment fails."""
        ledger.add("pay", n=n)
        if n == 1:
            raise ConnectionError("no answer")
        return f"paid {n}"

    respond = asks_for(*(call("pay", f"p{n}", n=n) for n in range(3)))
    graph = wrap(plain_loop(respond, [], node=ToolNode([pay], handle_tool_errors=errors_are_messages)))
    if errors_are_messages:
        run = await graph.arun(start())
        assert [commit.status for commit in run.commits] == ["ran", "failed", "ran"]
    else:
        with pytest.raises(CommitError, match=r"pay\(n=1\): failed \(ConnectionError: no answer\)"):
            await graph.arun(start())
    rows = [row["n"] for row in ledger.rows("pay")]
    assert rows == [0, 1, 2] if errors_are_messages else rows in ([0, 1], [0, 1, 2])


class Twice(AgentMiddleware):
    async def awrap_tool_call(self, request, handler):
        await handler(request)
        return await handler(request)


async def test_a_middleware_that_asks_twice_for_one_call_pays_once(ledger):
    agent = create_agent(ScriptedChatModel(respond=PAY), [paying(ledger, fails=0)], middleware=[Twice()])
    run = await wrap(agent).arun(start())
    assert ledger.rows("pay") == [{"n": 1}]
    assert len(run.commits) == 1


async def test_a_middleware_that_asks_twice_for_a_deferred_call_records_it_once(ledger):
    pay = paying(ledger, Deferred("queued"), fails=0)
    run = await wrap(create_agent(ScriptedChatModel(respond=PAY), [pay], middleware=[Twice()])).arun(start())
    await run.acommit([pay])
    assert ledger.rows("pay") == [{"n": 1}]


async def test_a_recorded_failure_outlives_the_process(ledger):
    """The second of two commits fails; the third is cut off, and its run goes on from the durable point before it."""

    @tool
    @effect("commit")
    async def pay(n: int) -> str:
        """Pay."""
        ledger.add("pay", n=n)
        if n == 0:
            raise ConnectionError("no answer")
        if len(ledger.rows("pay")) < 3:
            raise asyncio.CancelledError
        return f"paid {n}"

    respond = asks_for(call("pay", "a", n=0), call("pay", "b", n=1))
    node = ToolNode([pay], handle_tool_errors=True)
    graph = wrap(plain_loop(respond, [], node=node), checkpointer=InMemorySaver())
    thread = {"configurable": {"thread_id": "failed"}}
    with pytest.raises((CommitError, asyncio.CancelledError)):
        await graph.ainvoke(start(), thread)
    assert (await graph.ainvoke(None, thread))["__interrupt__"][0].value["args"] == {"n": 1}
    run = await graph.arun(Command(resume="run again"), thread)
    assert [row["n"] for row in ledger.rows("pay")] == [0, 1, 1]
    assert [commit.status for commit in run.commits] == ["failed", "ran"]
    assert "ConnectionError" in results(run.best_output["messages"])[0].content


@pytest.mark.parametrize("attempts", [0, True, "3"])
def test_an_impossible_number_of_attempts_is_refused(attempts):
    with pytest.raises(ValueError, match="at least 1"):
        Retried(attempts)


class CatchesAll(AgentMiddleware):
    """LangChain's example of error handling: every exception of a tool becomes a message."""

    async def awrap_tool_call(self, request, handler):
        try:
            return await handler(request)
        except Exception as error:
            return ToolMessage(f"failed: {error}", tool_call_id=request.tool_call["id"])


async def gathering(pay, wanted):
    answers = await asyncio.gather(pay.ainvoke({**wanted, "type": "tool_call"}), return_exceptions=True)
    answer = answers[0]
    return answer if isinstance(answer, ToolMessage) else ToolMessage("failed", tool_call_id=wanted["id"])


async def retrying(pay, wanted):
    for _ in range(3):
        try:
            return await pay.ainvoke({**wanted, "type": "tool_call"})
        except:  # noqa: E722
            continue
    raise ConnectionError("gave up")


async def in_a_thread(pay, wanted):
    answers = []
    thread = Thread(target=lambda: answers.append(pay.invoke({**wanted, "type": "tool_call"})))
    thread.start()
    thread.join()
    return answers[0] if answers else ToolMessage("failed", tool_call_id=wanted["id"])


def calling(pay, how, inner=False):
    async def act(state):
        return {"messages": [await how(pay, state["messages"][-1].tool_calls[0])]}

    agent = as_node(act)
    if not inner:
        return agent
    builder = StateGraph(MessagesState)
    builder.add_node("team", agent)
    builder.add_edge(START, "team")
    return builder.compile()


@variants("how", [gathering, retrying, in_a_thread])
@variants("inner", [False, True])
async def test_code_that_catches_all_does_not_lose_a_commit(ledger, how, inner):
    agent = calling(paying(ledger, fails=0), how, inner)
    run = await wrap(agent, step_after=["team"] if inner else None).arun(start())
    assert ledger.rows("pay") == [{"n": 1}]
    assert [commit.status for commit in run.commits] == ["ran"]
    assert results(run.best_output["messages"])[0].content == "paid 1"


async def test_a_middleware_that_catches_all_does_not_lose_a_commit(ledger):
    agent = create_agent(ScriptedChatModel(respond=PAY), [paying(ledger, fails=0)], middleware=[CatchesAll()])
    run = await wrap(agent).arun(start())
    assert ledger.rows("pay") == [{"n": 1}]
    assert results(run.best_output["messages"])[0].content == "paid 1"


async def test_a_call_that_ends_its_particle_ends_it_although_its_error_is_caught(ledger):
    pay = paying(ledger, Deferred(), fails=0)
    agent = create_agent(ScriptedChatModel(respond=PAY), [pay], middleware=[CatchesAll()])
    run = await wrap(agent).arun(start())
    assert [commit.args for commit in run.deferred] == [{"n": 1}]
    assert len(run.best.steps) <= 1


async def test_a_commit_that_is_lost_in_an_agent_within_a_tool_ends_the_run(ledger):
    inner = create_agent(ScriptedChatModel(respond=PAY), [paying(ledger, fails=0)], middleware=[CatchesAll()])

    @tool
    async def ask_billing(question: str) -> str:
        """Ask the billing agent."""
        return (await inner.ainvoke({"messages": [("user", question)]}))["messages"][-1].text

    respond = asks_for(call("ask_billing", "outer", question="pay"))
    agent = create_agent(ScriptedChatModel(respond=respond), [ask_billing])
    with pytest.raises(AgentContractError, match="stopped before the commit call 'pay', and went on without it"):
        await wrap(agent).arun(start())
    assert ledger.rows("pay") == []


def submitted(pool):
    return lambda pay, wanted: pool.submit(pay.invoke, wanted["args"]).result()


def bridged(pay, wanted):
    """The usual bridge from a sync tool to an async agent."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, pay.ainvoke(wanted["args"])).result()


def threaded(pay, wanted):
    answers = []
    thread = Thread(target=lambda: answers.append(pay.invoke(wanted["args"])))
    thread.start()
    thread.join()
    return answers[0] if answers else "failed"


def in_loop(pay, wanted):
    async def work():
        return await asyncio.get_running_loop().run_in_executor(None, pay.invoke, wanted["args"])

    return asyncio.run(work())


@pytest.fixture
def pool():
    """A pool of the program, whose workers started before the run."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(time.sleep, [0.01, 0.01]))
        yield pool


@variants("how", ["pool", bridged, threaded, in_loop])
def test_a_commit_in_a_thread_of_a_tool_runs_once(ledger, pool, how):
    pay, run_in = paying(ledger, fails=0), submitted(pool) if how == "pool" else how

    @tool
    @effect("read")
    def look_and_pay(n: int) -> str:
        """Look, and pay in a thread."""
        return run_in(pay, {"args": {"n": n}})

    respond = asks_for(call("look_and_pay", "l", n=1))
    graph = wrap(create_agent(ScriptedChatModel(respond=respond), [look_and_pay]))
    run = graph.run(start())
    assert ledger.rows("pay") == [{"n": 1}]
    assert [commit.status for commit in run.commits] == ["ran"]
    assert results(run.best_output["messages"])[0].content == "paid 1"


def test_a_pool_that_a_particle_filled_works_for_others_afterwards(ledger):
    pool, pay = ThreadPoolExecutor(1), paying(ledger, fails=0)

    @tool
    @effect("read")
    def warm(n: int) -> str:
        """Start the pool's worker."""
        return pool.submit(str, n).result()

    with pool:
        agent = create_agent(ScriptedChatModel(respond=asks_for(call("warm", "w", n=1))), [warm, pay])
        wrap(agent).run(start())
        assert pool.submit(pay.invoke, {"n": 7}).result() == "paid 7"
