"""Calls of deferred tools are recorded while particles search, and `run.commit` makes those of the winner, once."""

import asyncio
import copy
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents import Deferred, effect
from amc_agents.commits import DeferredCalls
from amc_agents.errors import AgentContractError, CommitError, ConfigurationError
from amc_agents.population.wrap import amc
from amc_agents.runtime.door import Door
from amc_agents.smc import AtSteps
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import (
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


def search(ledger, deferred, respond=clerk, *, agent=None, **settings):
    agent = agent or create_agent(ScriptedChatModel(respond=respond), list(shop_tools(ledger).values()))
    settings = {"n_particles": 6, "resample": AtSteps(2), "seed": 1, **settings}
    return amc(agent, prefers_large_refunds, tools={"look": "read", "refund": deferred}, **settings)


@variants("result", ["queued", lambda amount: f"queued {amount}"])
async def test_a_deferred_call_gets_its_stand_in_and_is_made_after_the_search(ledger, result, capsys):
    run = await search(ledger, Deferred(result)).arun(start())
    amount = refunds_in(run.best)[0]
    assert results(run.best_output["messages"], "refund")[0].content in ("queued", f"queued {amount}")
    assert (ledger.rows("refund"), run.commits, [str(each) for each in run.deferred]) == (
        [], (), [f"refund(amount={amount}): not run"],
    )  # fmt: skip
    tools = list(shop_tools(ledger).values())
    run.commit(tools, dry_run=True)
    assert capsys.readouterr().out == f"refund(amount={amount}): not run\n"
    assert ledger.rows("refund") == []
    [made] = run.commit(tools)
    assert ledger.rows("refund") == [{"amount": amount}]
    assert (made.status, made.result) == ("ran", f"paid {amount}")
    with pytest.raises(ConfigurationError, match="called before"):
        run.commit(tools)
    assert len(ledger.rows("refund")) == 1
    assert f"refund(amount={amount}): ran" in repr(run)
    assert run.as_plain()["deferred"][0]["status"] == "ran"


@pytest.mark.thorough
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda run: pickle.loads(pickle.dumps(run)), replace])
async def test_a_copy_of_a_run_makes_no_call_again(ledger, copied):
    run = await search(ledger, Deferred("queued")).arun(start())
    before, tools = copied(run), list(shop_tools(ledger).values())
    run.commit(tools)
    for other in (before, copied(run)):
        with pytest.raises(ConfigurationError, match="called before on this run or a copy of it"):
            other.commit(tools)
    calls = DeferredCalls(run.deferred)
    with pytest.raises(ConfigurationError, match="called before"):
        calls.begin()
    assert len(ledger.rows("refund")) == 1


async def test_without_a_stand_in_the_call_ends_its_particle(ledger):
    run = await search(ledger, Deferred()).arun(start())
    assert all(each.done and each.steps[-1].observation == "" for each in run.population.trajectories)
    assert [each.args["amount"] for each in run.deferred] == refunds_in(run.best)
    [made] = await run.acommit(list(shop_tools(ledger, sync=False).values()))
    assert (ledger.rows("refund"), made.status) == ([dict(made.args)], "ran")


async def test_several_deferred_calls_are_made_in_order_and_stop_at_a_failure(ledger):
    def thrice(messages):
        done = len(results(messages))
        return "done" if done == 3 else AIMessage("", tool_calls=[call("refund", f"r{done}", amount=done)])

    @tool
    def refund(amount: int) -> str:
        """Fail at the second refund."""
        ledger.add("refund", amount=amount)
        if amount == 1:
            raise RuntimeError("no connection")
        return "paid"

    run = await search(ledger, Deferred("queued"), thrice, resample=AtSteps(1)).arun(start())
    with pytest.raises(ConfigurationError, match="refund missing"):
        run.commit([])
    with pytest.raises(CommitError, match=r"failed \(RuntimeError: no connection\).*refund\(amount=2\): not run"):
        run.commit([refund])
    assert ledger.rows("refund") == [{"amount": 0}, {"amount": 1}]
    assert [each.status for each in run.deferred] == ["ran", "failed", "not run"]


async def test_a_deferred_call_beside_a_commit_waits_for_it(ledger):
    @tool
    @effect(Deferred())
    def mail(text: str) -> str:
        """Send mail."""
        ledger.add("mail", text=text)
        return "sent"

    def respond(messages):
        return AIMessage("", tool_calls=[call("mail", "a", text="hello"), call("refund", "b", amount=1)])

    for loop in (plain_loop, None):
        tools = [mail, shop_tools(ledger)["refund"]]
        agent = loop(respond, tools) if loop else create_agent(ScriptedChatModel(respond=respond), tools)
        run = await amc(agent, "uniform", tools={"refund": "commit"}, n_particles=3, seed=1).arun(start())
        assert [str(each) for each in run.deferred] == ["mail(text='hello'): not run"]
        assert [commit.status for commit in run.commits] == ["ran"]
    assert (len(ledger.rows("refund")), ledger.rows("mail")) == (2, [])


class LateThreads(ThreadPoolExecutor):
    """Threads that start late, as on a busy machine."""

    def submit(self, call, /, *args, **kwargs):
        def late():
            time.sleep(0.1)
            return call(*args, **kwargs)

        return super().submit(late)


@pytest.mark.thorough  # threads; quick: test_a_deferred_call_beside_a_commit_waits_for_it
@pytest.mark.parametrize("loop", [plain_loop, None])
async def test_a_commit_whose_thread_starts_late_is_made_beside_a_deferred_call(ledger, loop):
    asyncio.get_running_loop().set_default_executor(LateThreads())

    @tool
    @effect(Deferred())
    async def mail(text: str) -> str:
        """Send mail."""
        raise AssertionError("made during the search")

    def respond(messages):
        return AIMessage("", tool_calls=[call("mail", "a", text="hello"), call("refund", "b", amount=1)])

    tools = [mail, shop_tools(ledger)["refund"]]
    agent = loop(respond, tools) if loop else create_agent(ScriptedChatModel(respond=respond), tools)
    run = await amc(agent, "uniform", tools={"refund": "commit"}, n_particles=2, seed=1).arun(start())
    assert [commit.status for commit in run.commits] == ["ran"]
    assert [str(each) for each in run.deferred] == ["mail(text='hello'): not run"]
    assert ledger.rows("refund") == [{"amount": 1}]


async def test_a_time_limit_while_a_call_is_awaited_does_not_reach_the_call():
    door = Door()
    with door.asked():
        waiting = asyncio.create_task(door.end_attempt())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await door.end_attempt()


def test_a_node_cannot_be_deferred(ledger):
    agent = plain_loop(clerk, [], node=effect(Deferred())(lambda state: {}))
    with pytest.raises(AgentContractError, match="only a tool can be"):
        amc(agent, "uniform")
