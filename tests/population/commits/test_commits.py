"""A commit tool runs once, in reality, however many particles call it."""

import asyncio

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from amc_agents import Adaptive, Budget, effect
from amc_agents.errors import AgentContractError, BudgetExhausted, CommitError
from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep, Never
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.commits.ledger import (
    EFFECTS,
    Ledger,
    call,
    clerk,
    plain_loop,
    prefers_large_refunds,
    refunds_in,
    results,
    shop_tools,
    start,
)
from tests.variants import variants


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.db")


def shop(ledger, respond=clerk, critic=prefers_large_refunds, *, sync=True, agent=None, **settings):
    tools = shop_tools(ledger, sync=sync)
    agent = agent or create_agent(ScriptedChatModel(respond=respond), list(tools.values()))
    given = {"n_particles": 6, "resample": AtSteps(2), "tools": EFFECTS, "seed": 1, **settings}
    return amc(agent, critic, **arguments(**given))


@pytest.mark.thorough
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("schedule", [AtSteps(2), EveryStep(), Never()])
async def test_a_commit_runs_once_and_every_particle_lives_through_it(ledger, sync, schedule):
    run = await shop(ledger, sync=sync, resample=schedule).arun(start())
    [row] = ledger.rows("refund")
    [commit] = run.commits
    assert (commit.name, commit.args, commit.status, commit.result) == ("refund", row, "ran", f"paid {row['amount']}")
    assert len(run.population.trajectories) == 6
    for trajectory in run.population.trajectories:
        assert refunds_in(trajectory) == [row["amount"]]
        assert trajectory.done
    assert f"refund(amount={row['amount']}): ran" in repr(run)


@pytest.mark.thorough  # quick: the frozen record "commits without resampling"
async def test_a_commit_is_no_resampling(ledger):
    run = await shop(ledger, resample=Never()).arun(start())
    [point] = [point for point in run.history if point.ancestors is not None]
    assert set(point.ancestors) == {point.selected}
    assert "resampled  never" in repr(run)
    resampled = await shop(ledger, resample=EveryStep()).arun(start())
    drawn = [point for point in resampled.history if point.ancestors is not None and point.selected is None]
    assert len([point for point in resampled.history if point.selected is not None]) == 1
    assert f"resampled  {len(drawn)} time" in repr(resampled)


def test_sync_invoke_and_streams_commit_once_each(ledger):
    graph = shop(ledger)
    state = graph.invoke(start())
    assert len(results(state["messages"], "refund")) == len(ledger.rows("refund")) == 1
    events = list(graph.stream(start(), stream_mode="custom"))
    [commit] = [event for event in events if event["type"] == "amc.commit"]
    assert commit["calls"][0]["args"] == ledger.rows("refund")[-1]
    assert len(ledger.rows("refund")) == 2


async def test_the_particle_with_the_best_pending_call_is_selected(ledger):
    seen = []

    def critic(trajectories):
        if trajectories:  # `amc` tries a sync critic without any.
            seen.append([(refunds_in(trajectory), trajectory.steps[-1].observation) for trajectory in trajectories])
        return prefers_large_refunds(trajectories)

    await shop(ledger, critic=critic, resample=Never()).arun(start())
    at_door = seen[0]
    assert {(len(amounts), observation) for amounts, observation in at_door} == {(1, "")}
    assert ledger.rows("refund") == [{"amount": max(amounts[0] for amounts, _ in at_door)}]


def unequal(messages):
    """Particles that draw an even number answer at once; the others ask for a refund."""
    if results(messages):
        return "done"
    number = int(particle_rng().integers(100))
    return f"no refund {number}" if number % 2 else AIMessage("", tool_calls=[call("refund", "1", amount=number)])


async def test_a_finished_particle_that_wins_is_the_answer_and_nothing_is_committed(ledger):
    run = await shop(ledger, unequal, lambda trajectories: [-len(refunds_in(each)) for each in trajectories]).arun(
        start()
    )
    assert ledger.rows("refund") == []
    assert run.commits == ()
    assert run.best.steps[-1].action.startswith("no refund")
    assert run.best.done
    assert run.population.trajectories[run.best_index] is run.best
    assert "a finished trajectory was preferred" in " ".join(run.notes)
    assert run.log_evidence != run.log_evidence


async def test_finished_particles_that_lose_are_cleared(ledger):
    run = await shop(ledger, unequal, lambda trajectories: [len(refunds_in(each)) for each in trajectories]).arun(
        start()
    )
    assert len(ledger.rows("refund")) == 1
    assert {len(refunds_in(each)) for each in run.population.trajectories} == {1}


@pytest.mark.thorough  # quick: test_the_particle_with_the_best_pending_call_is_selected
async def test_the_best_return_so_far_does_not_select(ledger):
    """A waiting particle has no return yet, and is selected by what the critic expects of it."""

    def paid(state):
        return float(bool(results(state["messages"], "refund")))

    run = await shop(
        ledger, unequal, lambda trajectories: [1.0] * len(trajectories), reward=paid, select="return"
    ).arun(start())  # fmt: skip
    assert len(ledger.rows("refund")) == 1
    assert run.best.return_ == 1.0


async def test_an_archived_trajectory_competes_and_is_cleared_by_a_commit(ledger):
    def better_without(state):
        return 0.0 if results(state["messages"], "refund") else 0.5

    run = await shop(
        ledger, unequal, lambda trajectories: [2.0] * len(trajectories), reward=better_without, finished="keep"
    ).arun(start())  # fmt: skip
    assert len(ledger.rows("refund")) == 1
    assert run.best_index >= 0
    assert refunds_in(run.best)


def parallel(*calls):
    """A policy that makes these calls in one message, then answers."""

    def respond(messages):
        return "done" if results(messages) else AIMessage("", tool_calls=list(calls))

    return respond


@variants("loop", ["create_agent", "plain ToolNode"])
@variants("sync", [True, False])
async def test_calls_beside_a_commit_are_not_repeated_and_two_commits_run_in_order(ledger, loop, sync):
    tools = shop_tools(ledger, sync=sync)
    respond = parallel(
        call("refund", "a", amount=1),
        call("look", "b", item=7),
        call("refund", "c", amount=2),
        call("look", "d", item=8),
    )
    agent = plain_loop(respond, tools.values()) if loop == "plain ToolNode" else None
    run = await shop(ledger, respond, agent=agent, sync=sync, n_particles=3).arun(start())
    assert ledger.rows("refund") == [{"amount": 1}, {"amount": 2}]
    assert [commit.call_id for commit in run.commits] == ["a", "c"]
    # Each at most once per particle: calls that had no thread yet when their node was interrupted did not run.
    assert 2 <= len(ledger.rows("look")) <= 6
    assert sync or len(ledger.rows("look")) == 6
    messages = run.best_output["messages"]
    assert [message.content for message in results(messages)] == ["paid 1", "item 7", "paid 2", "item 8"]


async def test_a_slow_call_beside_a_commit_ends_before_the_particle_waits(ledger):
    tools = shop_tools(ledger, sync=False)

    @tool
    async def slow(item: int) -> str:
        """Take a while."""
        await asyncio.sleep(0.2)
        ledger.add("slow", item=item)
        return "slow"

    respond = parallel(call("refund", "a", amount=1), call("slow", "b", item=1))
    agent = plain_loop(respond, [*tools.values(), slow])
    run = await shop(ledger, agent=agent, tools={**EFFECTS, "slow": "read"}, n_particles=2).arun(start())
    assert len(ledger.rows("slow")) == 2
    assert len(ledger.rows("refund")) == 1
    assert [message.content for message in results(run.best_output["messages"])] == ["paid 1", "slow"]


@pytest.mark.thorough  # quick: test_sync_invoke_and_streams_commit_once_each
async def test_a_tool_of_a_middleware_commits_once(ledger):
    class Refunding(AgentMiddleware):
        tools = (shop_tools(ledger)["refund"],)

    agent = create_agent(ScriptedChatModel(respond=clerk), [shop_tools(ledger)["look"]], middleware=[Refunding()])
    await shop(ledger, agent=agent).arun(start())
    assert len(ledger.rows("refund")) == 1


async def test_a_retrying_middleware_repeats_reads_and_the_door_still_holds(ledger):
    class Twice(AgentMiddleware):
        async def awrap_tool_call(self, request, handler):
            await handler(request)
            return await handler(request)

    respond = parallel(call("look", "a", item=1))
    agent = create_agent(ScriptedChatModel(respond=respond), list(shop_tools(ledger).values()), middleware=[Twice()])
    await shop(ledger, agent=agent, n_particles=2).arun(start())
    assert len(ledger.rows("look")) == 4  # The middleware asks for both calls, and both are made.


def sub_agent(ledger, respond):
    return create_agent(ScriptedChatModel(respond=respond), list(shop_tools(ledger).values()))


async def test_an_agent_as_a_tool_commits_once_and_the_critic_reads_its_call(ledger):
    inner = sub_agent(ledger, parallel(call("refund", "inner", amount=5)))
    seen = []

    @tool
    async def ask_billing(question: str) -> str:
        """Ask the billing agent."""
        answer = await inner.ainvoke({"messages": [("user", question)]})
        return answer["messages"][-1].text

    def critic(trajectories):
        seen.extend(trajectory.steps[-1].action for trajectory in trajectories)
        return [0.0] * len(trajectories)

    agent = create_agent(
        ScriptedChatModel(respond=parallel(call("ask_billing", "outer", question="pay"))), [ask_billing]
    )
    run = await shop(ledger, critic=critic, agent=agent, tools={**EFFECTS, "ask_billing": "read"}).arun(start())
    assert ledger.rows("refund") == [{"amount": 5}]
    assert seen[0] == '{"args": {"amount": 5}, "name": "refund"}'
    assert results(run.best_output["messages"])[0].content == "done"


async def test_a_subgraph_node_commits_each_of_its_calls_once(ledger):
    def twice(messages):
        paid = len(results(messages, "refund"))
        return "done" if paid == 2 else AIMessage("", tool_calls=[call("refund", f"r{paid}", amount=paid + 1)])

    builder = StateGraph(MessagesState)
    builder.add_node("billing", sub_agent(ledger, twice))
    builder.add_edge(START, "billing")
    run = await shop(ledger, agent=builder.compile(), step_after=["billing"], n_particles=3).arun(start())
    assert ledger.rows("refund") == [{"amount": 1}, {"amount": 2}]
    assert run.best_output["messages"][-1].text == "done"


async def test_a_tool_node_of_ones_own_and_a_tool_called_without_an_id(ledger):
    refund = shop_tools(ledger)["refund"]

    def act(state):
        [wanted] = state["messages"][-1].tool_calls
        answer = refund.invoke(wanted["args"])
        return {"messages": [ToolMessage(answer, tool_call_id=wanted["id"], name="refund")]}

    agent = plain_loop(parallel(call("refund", "a", amount=3)), [], node=act)
    run = await shop(ledger, agent=agent, tools={"refund": "commit", "tools": "read"}, step_after="tools").arun(start())
    assert ledger.rows("refund") == [{"amount": 3}]
    assert run.commits[0].call_id is None


async def test_a_node_can_be_a_commit(ledger):
    @effect("commit")
    def pay(state):
        ledger.add("refund", amount=4)
        return {"messages": [ToolMessage("paid", tool_call_id="a", name="refund")]}

    agent = plain_loop(parallel(call("refund", "a", amount=4)), [], node=pay)
    run = await shop(ledger, agent=agent, tools={}).arun(start())
    assert ledger.rows("refund") == [{"amount": 4}]
    assert [(commit.name, commit.status) for commit in run.commits] == [("tools", "ran")]


@pytest.mark.thorough  # quick: test_calls_beside_a_commit_are_not_repeated_...
async def test_several_commits_one_after_the_other(ledger):
    def thrice(messages):
        paid = len(results(messages, "refund"))
        amount = int(particle_rng().integers(1000))
        return "done" if paid == 3 else AIMessage("", tool_calls=[call("refund", f"r{paid}", amount=amount)])

    run = await shop(ledger, thrice).arun(start())
    assert [commit.args for commit in run.commits] == ledger.rows("refund")
    assert len(run.commits) == 3
    assert [commit.step for commit in run.commits] == [0, 1, 2]


async def test_a_failing_commit_ends_the_run_and_is_said(ledger):
    @tool
    @effect("commit")
    def refund(amount: int) -> str:
        """Pay, then break."""
        ledger.add("refund", amount=amount)
        raise RuntimeError("the bank hung up")

    agent = create_agent(ScriptedChatModel(respond=parallel(call("refund", "a", amount=9))), [refund])
    with pytest.raises(CommitError, match=r"refund\(amount=9\): failed \(RuntimeError: the bank hung up\)") as caught:
        await shop(ledger, agent=agent, tools={}).arun(start())
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "these commit calls were made: refund(amount=9)" in "".join(caught.value.__notes__)
    assert ledger.rows("refund") == [{"amount": 9}]


async def test_a_commit_whose_errors_are_messages_goes_on_and_the_agent_may_try_again(ledger):
    @tool
    @effect("commit")
    def refund(amount: int) -> str:
        """Break the first time."""
        ledger.add("refund", amount=amount)
        if len(ledger.rows("refund")) == 1:
            raise RuntimeError("the bank hung up")
        return "paid"

    def stubborn(messages):
        tries = len(results(messages))
        if tries and results(messages)[-1].content == "paid":
            return "done"
        return AIMessage("", tool_calls=[call("refund", f"try-{tries}", amount=tries)])

    agent = plain_loop(stubborn, [], node=ToolNode([refund], handle_tool_errors=True))
    run = await shop(ledger, agent=agent, tools={}).arun(start())
    assert [commit.status for commit in run.commits] == ["failed", "ran"]
    assert len(ledger.rows("refund")) == 2


async def test_a_particle_that_fails_before_its_commit_leaves_the_others_their_turn(ledger):
    class FailsOnResume(AgentMiddleware):
        visits = 0

        async def awrap_tool_call(self, request, handler):
            if request.tool_call["args"].get("amount") == 999:
                self.visits += 1
                if self.visits > 1:
                    raise RuntimeError("lost")
            return await handler(request)

    amounts = iter([999, 1, 2])

    def respond(messages):
        return "done" if results(messages) else AIMessage("", tool_calls=[call("refund", "a", amount=next(amounts))])

    tools = list(shop_tools(ledger).values())
    agent = create_agent(ScriptedChatModel(respond=respond), tools, middleware=[FailsOnResume()])
    run = await shop(ledger, agent=agent, n_particles=3).arun(start())
    assert ledger.rows("refund") == [{"amount": 2}]
    assert len(run.commits) == 1


async def test_a_node_that_changes_its_call_is_refused_and_nothing_runs(ledger):
    refund = shop_tools(ledger)["refund"]
    amounts = iter(range(100))
    builder = StateGraph(MessagesState)
    builder.add_node("act", lambda state: {"messages": [("ai", refund.invoke({"amount": next(amounts)}))]})
    builder.add_edge(START, "act")
    graph = shop(ledger, agent=builder.compile(), tools={"refund": "commit", "act": "read"}, step_after="act")
    with pytest.raises(AgentContractError, match="the node made another call"):
        await graph.arun(start())
    assert ledger.rows("refund") == []


async def test_outside_of_amc_a_commit_tool_is_an_ordinary_tool(ledger):
    tools = shop_tools(ledger)
    agent = create_agent(ScriptedChatModel(respond=clerk), list(tools.values()))
    shop(ledger, agent=agent)
    await agent.ainvoke(start())
    assert tools["refund"].invoke({"amount": 1}) == "paid 1"
    assert len(ledger.rows("refund")) == 2
    assert type(tools["refund"]).__name__ == "StructuredTool"


async def test_stop_at_and_the_horizon_end_a_run_before_its_commits(ledger):
    run = await shop(ledger, unequal, reward=lambda state: 1.0, stop_at=1.0, critic="uniform").arun(start())
    assert ledger.rows("refund") == []
    assert run.best.done
    run = await shop(ledger, horizon=1).arun(start())
    assert ledger.rows("refund") == []
    assert run.best.truncated
    run = await shop(ledger, parallel(call("refund", "a", amount=1)), horizon=1).arun(start())
    assert len(ledger.rows("refund")) == 1
    assert run.best.truncated
    assert len(run.commits) == 1


def test_a_subgraph_without_memory_and_a_provider_tool_cannot_commit(ledger):
    inner = create_agent(ScriptedChatModel(respond=clerk), list(shop_tools(ledger).values()), checkpointer=False)
    builder = StateGraph(MessagesState)
    builder.add_node("billing", inner)
    builder.add_edge(START, "billing")
    with pytest.raises(AgentContractError, match="checkpointer=False"):
        shop(ledger, agent=builder.compile(), step_after="billing")
    agent = create_agent(ScriptedChatModel(respond=clerk), [{"type": "web_search"}, *shop_tools(ledger).values()])
    with pytest.raises(AgentContractError, match="provider runs it"):
        shop(ledger, agent=agent, tools={**EFFECTS, "web_search": "commit"})


@variants("n_calls", [7, 60])
async def test_models_inside_the_step_of_a_commit_spend_from_the_budget_and_never_hang(ledger, n_calls):
    """The inner agent goes on asking its model after its commit, while no other particle runs."""

    def inner(messages):
        done = len(results(messages))
        if done == 0:
            return AIMessage("", tool_calls=[call("refund", "r", amount=1)])
        return "done" if done == 8 else AIMessage("", tool_calls=[call("look", f"l{done}", item=done)])

    billing = sub_agent(ledger, inner)

    @tool
    async def ask_billing(question: str) -> str:
        """Ask the billing agent."""
        return (await billing.ainvoke({"messages": [("user", question)]}))["messages"][-1].text

    respond = parallel(call("ask_billing", "outer", question="pay"))
    agent = create_agent(ScriptedChatModel(respond=respond), [ask_billing])
    settings = {"tools": {**EFFECTS, "ask_billing": "read"}, "n_particles": 2, "budget": Budget(calls=n_calls)}
    running = shop(ledger, agent=agent, **settings).arun(start())
    if n_calls == 60:
        assert (await asyncio.wait_for(running, 30)).commits
    else:
        with pytest.raises(BudgetExhausted) as caught:
            await asyncio.wait_for(running, 30)
        assert "refund(amount=1): ran" in "".join(getattr(caught.value, "__notes__", []))
    assert ledger.rows("refund") == [{"amount": 1}]


@pytest.mark.parametrize("answer", ["run again", {"ran": "paid"}])
async def test_a_budget_that_ends_after_a_commit_in_doubt_answers_with_no_particle_without_it(ledger, answer):
    """One particle has ended without the payment; the other's was cut off, and its model's next call is too much."""
    asked = []

    @tool
    async def refund(amount: int) -> str:
        """Pay, and lose the connection at first."""
        ledger.add("refund", amount=amount)
        if len(ledger.rows("refund")) == 1:
            raise asyncio.CancelledError
        return "paid"

    def respond(messages):
        asked.append(len(messages))
        return "done" if len(asked) == 1 else AIMessage("", tool_calls=[call("refund", "r", amount=1)])

    builder = StateGraph(MessagesState)
    builder.add_node("billing", create_agent(ScriptedChatModel(respond=respond), [refund]))
    builder.add_edge(START, "billing")
    graph = shop(ledger, agent=builder.compile(), step_after="billing", tools={"refund": "commit"}, n_particles=2,
                 resample=Never(), budget=Budget(calls=2), checkpointer=InMemorySaver())  # fmt: skip
    thread = {"configurable": {"thread_id": "doubt"}}
    with pytest.raises(CommitError, match="may have run"):
        await graph.ainvoke(start(), thread)
    assert "__interrupt__" in await graph.ainvoke(None, thread)
    with pytest.raises(BudgetExhausted) as caught:
        await graph.ainvoke(Command(resume=answer), thread)
    assert "refund(amount=1): " in "".join(caught.value.__notes__)


@pytest.mark.thorough  # quick: test_a_budget_that_ends_after_a_commit_in_doubt_...
async def test_an_undecided_adaptive_run_starts_no_new_particles_after_a_commit(ledger):
    """They would not have lived through it, and would commit again."""
    critic = lambda seen: [0.5 + 0.001 * len(each.steps[-1].action) for each in seen]  # noqa: E731
    graph = shop(ledger, critic=critic, n_particles=Adaptive(start=2, most=8), resample=Never())
    run = await asyncio.wait_for(graph.arun(start()), 20)
    assert len(ledger.rows("refund")) == len(run.commits) == 1
    assert {len(refunds_in(each)) for each in run.population.trajectories} == {1}
