"""After a crash within a commit call, the run asks whether the call ran; each crash is a question of its own."""

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from amc_agents.errors import AgentContractError, CommitError
from amc_agents.population.wrap import amc
from amc_agents.smc import Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import Ledger, call, results, start

THREAD = {"configurable": {"thread_id": "crash"}}


class Crash(BaseException):
    """Ends the call of the graph as the end of the process would: no code of the library handles it."""


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.db")


@pytest.fixture
def crashes():
    """How often the refund still crashes after it was paid."""
    return [1]


@pytest.fixture
def graph(ledger, crashes):
    @tool
    def refund(amount: int) -> str:
        """Pay, and crash."""
        ledger.add("refund", amount=amount)
        if crashes[0]:
            crashes[0] -= 1
            raise Crash
        return f"paid {amount}"

    def respond(messages):
        paid = len(results(messages))
        return "done" if paid == 2 else AIMessage("", tool_calls=[call("refund", f"r{paid}", amount=paid)])

    agent = create_agent(ScriptedChatModel(respond=respond), [refund])
    return amc(
        agent,
        "uniform",
        tools={"refund": "commit"},
        n_particles=3,
        resample=Never(),
        checkpointer=InMemorySaver(),
        seed=1,
    )


async def crash(graph, given=None):
    with pytest.raises(Crash):
        await graph.ainvoke(given or start(), THREAD)


async def asked(graph, given=None):
    return (await graph.ainvoke(given, THREAD))["__interrupt__"][0].value


async def test_a_human_says_that_the_call_ran(graph, ledger):
    await crash(graph)
    question = await asked(graph)
    assert (question["name"], question["args"], question["call_id"]) == ("refund", {"amount": 0}, "r0")
    assert "it may have run" in question["question"]
    assert await asked(graph) == question  # Nothing runs until it is answered.
    run = await graph.arun(Command(resume={"ran": "paid, says the bank"}), THREAD)
    assert ledger.rows("refund") == [{"amount": 0}, {"amount": 1}]
    assert [commit.status for commit in run.commits] == ["answered", "ran"]
    assert results(run.best_output["messages"])[0].content == "paid, says the bank"


async def test_a_human_lets_the_call_run_again(graph, ledger):
    await crash(graph)
    await asked(graph)
    run = await graph.arun(Command(resume="run again"), THREAD)
    assert ledger.rows("refund") == [{"amount": 0}, {"amount": 0}, {"amount": 1}]
    assert [commit.status for commit in run.commits] == ["ran", "ran"]


async def test_a_human_aborts(graph, ledger):
    await crash(graph)
    await asked(graph)
    with pytest.raises(CommitError, match=r"aborted: refund\(amount=0\): may have run"):
        await graph.arun(Command(resume="abort"), THREAD)
    assert len(ledger.rows("refund")) == 1


async def test_an_answer_about_one_attempt_does_not_count_for_another(graph, ledger, crashes):
    crashes[0] = 2
    await crash(graph)
    await asked(graph)
    await crash(graph, Command(resume="run again"))
    assert (await asked(graph))["args"] == {"amount": 0}
    assert len(ledger.rows("refund")) == 2


async def test_an_unclear_answer_is_asked_again(graph):
    await crash(graph)
    await asked(graph)
    for _ in range(3):
        again = await asked(graph, Command(resume="yes"))
        assert again["refused"] == "expected {'ran': result}, 'run again' or 'abort', got 'yes'"
    run = await graph.arun(Command(resume={"ran": "paid"}), THREAD)
    assert [commit.status for commit in run.commits] == ["answered", "ran"]


async def test_a_replay_from_before_a_commit_is_refused(graph, ledger, crashes):
    crashes[0] = 0
    await graph.ainvoke(start(), THREAD)
    before = [state.config for state in graph.get_state_history(THREAD) if state.next in (("commit",), ("weigh",))]
    with pytest.raises(AgentContractError, match="before a commit call"):
        await graph.ainvoke(None, before[-1])
    assert len(ledger.rows("refund")) == 2


async def test_commit_tools_need_worlds_that_a_checkpointed_run_can_save(ledger):
    class Fork:
        async def fork(self, seed):
            return Fork()

        async def close(self):
            pass

    @tool
    def refund(amount: int) -> str:
        """Pay."""
        return "paid"

    agent = create_agent(ScriptedChatModel(respond=lambda messages: "done"), [refund])
    settings = {"tools": {"refund": "commit"}, "environment": lambda state: Fork(), "n_particles": 2}
    with pytest.raises(AgentContractError, match="worlds cannot be saved"):
        await amc(agent, "uniform", checkpointer=InMemorySaver(), **settings).ainvoke(start(), THREAD)
    assert (await amc(agent, "uniform", **settings).ainvoke(start()))["messages"][-1].text == "done"
