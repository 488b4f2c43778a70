"""A question of the agent to a human is asked once, by the outer graph, for the selected particle."""

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from amc_agents.errors import AgentContractError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.graph import amc
from amc_agents.smc import AtSteps, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import (
    EFFECTS,
    Ledger,
    call,
    prefers_large_refunds,
    refunds_in,
    results,
    shop_tools,
    start,
)

THREAD = {"configurable": {"thread_id": "customer"}}


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.db")


def refunds_once(messages):
    if results(messages, "refund"):
        return f"done {particle_rng().integers(1000)}"
    return AIMessage("", tool_calls=[call("refund", "r", amount=int(particle_rng().integers(1000)))])


def with_approval(ledger, *, effects=EFFECTS, **settings):
    agent = create_agent(
        ScriptedChatModel(respond=refunds_once),
        list(shop_tools(ledger).values()),
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True})],
    )
    settings = {"n_particles": 4, "resample": Never(), "checkpointer": InMemorySaver(), "seed": 1, **settings}
    return amc(agent, prefers_large_refunds, tools=effects, **settings)


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_approval_is_asked_once_and_the_run_goes_on_with_all_particles(ledger, asynchronous, caplog):
    graph = with_approval(ledger)
    first = await graph.ainvoke(start(), THREAD) if asynchronous else graph.invoke(start(), THREAD)
    [asked] = first["__interrupt__"]
    [request] = asked.value["action_requests"]
    assert request["name"] == "refund"
    assert ledger.rows("refund") == []
    answer = Command(resume={"decisions": [{"type": "approve"}]})
    run = await graph.arun(answer, THREAD) if asynchronous else graph.run(answer, THREAD)
    assert ledger.rows("refund") == [request["args"]]
    assert len(run.population.trajectories) == 4
    assert {tuple(refunds_in(each)) for each in run.population.trajectories} == {(request["args"]["amount"],)}
    assert len({each.steps[-1].action for each in run.population.trajectories}) > 1
    assert graph.get_state(THREAD).values["messages"][-1].text == run.best.steps[-1].action
    assert "broke off" not in caplog.text, "a run that asks has not broken off"


async def test_a_rejection_reaches_the_agent_and_nothing_is_committed(ledger):
    graph = with_approval(ledger)
    await graph.ainvoke(start(), THREAD)
    answer = Command(resume={"decisions": [{"type": "reject", "message": "no money"}]})
    run = await graph.arun(answer, THREAD)
    assert ledger.rows("refund") == []
    assert "no money" in str(run.best_output["messages"])


async def test_without_a_checkpointer_a_question_cannot_be_asked(ledger):
    with pytest.raises(AgentContractError, match="give amc\\(\\) a checkpointer"):
        await with_approval(ledger, checkpointer=False).arun(start())


@tool
def ask_owner(question: str) -> str:
    """Ask the owner."""
    return interrupt(question)


def asks_twice(messages):
    answers = results(messages)
    if not answers:
        return AIMessage("", tool_calls=[call("ask_owner", "1", question="a"), call("ask_owner", "2", question="b")])
    return "; ".join(str(answer.content) for answer in answers)


async def test_two_questions_of_one_step_are_asked_one_after_the_other():
    agent = create_agent(ScriptedChatModel(respond=asks_twice), [ask_owner])
    graph = amc(agent, "uniform", stateless_tools=True, n_particles=2, checkpointer=InMemorySaver(), seed=1)
    asked = [(await graph.ainvoke(start(), THREAD))["__interrupt__"][0].value]
    asked.append((await graph.ainvoke(Command(resume="yes"), THREAD))["__interrupt__"][0].value)
    state = await graph.ainvoke(Command(resume="no"), THREAD)
    assert asked == ["a", "b"]
    assert state["messages"][-1].text == "yes; no"


async def test_a_question_inside_a_commit_tool(ledger):
    @tool
    def refund(amount: int) -> str:
        """Pay after asking."""
        answer = interrupt(f"pay {amount}?")
        ledger.add("refund", amount=amount)
        return f"paid, because: {answer}"

    agent = create_agent(ScriptedChatModel(respond=refunds_once), [refund])
    graph = amc(
        agent, prefers_large_refunds, tools={"refund": "commit"}, n_particles=3, checkpointer=InMemorySaver(), seed=1
    )
    asked = (await graph.ainvoke(start(), THREAD))["__interrupt__"][0].value
    assert ledger.rows("refund") == []
    run = await graph.arun(Command(resume="she is right"), THREAD)
    [row] = ledger.rows("refund")
    assert asked == f"pay {row['amount']}?"
    [commit] = run.commits
    assert (commit.status, commit.result) == ("ran", "paid, because: she is right")


async def test_a_question_within_a_surrounding_graph(ledger):
    builder = StateGraph(MessagesState)
    builder.add_node("amc", with_approval(ledger, checkpointer=None))
    builder.add_edge(START, "amc")
    outer = builder.compile(checkpointer=InMemorySaver())
    first = await outer.ainvoke(start(), THREAD)
    [request] = first["__interrupt__"][0].value["action_requests"]
    await outer.ainvoke(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert ledger.rows("refund") == [request["args"]]


async def test_questions_and_searching_steps(ledger):
    """Resampling before the question does not ask it twice."""
    graph = with_approval(ledger, resample=AtSteps(1, 2))
    assert len((await graph.ainvoke(start(), THREAD))["__interrupt__"]) == 1
    run = await graph.arun(Command(resume={"decisions": [{"type": "approve"}]}), THREAD)
    assert len(ledger.rows("refund")) == len(run.commits) == 1
