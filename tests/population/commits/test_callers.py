"""Two callers of a thread: one runs it, the others are refused, and nothing is paid twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.types import Command

from amc_agents import current_commit
from amc_agents.commits import Commit, DeferredCalls
from amc_agents.errors import AgentContractError, CommitError, ThreadHeld
from amc_agents.population.features.durable import lease
from amc_agents.population.wrap import amc
from amc_agents.runtime.effects import Retried
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.callers import N_CALLERS, break_off, payer
from tests.population.commits.ledger import Ledger, call, results, start
from tests.variants import variants

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger.db")


def call_together(database: str, folder: Path, starts: int) -> Ledger:
    """Let several processes call the same threads, and return the ledger."""
    ledger = Ledger(folder / "ledger.db")
    arguments = ["-m", "tests.population.commits.callers", database, str(ledger.path), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    callers = [
        subprocess.Popen([sys.executable, *arguments, str(rank), str(starts)], cwd=ROOT, env=environment)
        for rank in range(N_CALLERS)
    ]
    assert [caller.wait() for caller in callers] == [0] * N_CALLERS
    return ledger


def check_paid_once(ledger: Ledger, starts: int) -> None:
    paid = ledger.rows("refund")
    assert sorted(str(row["thread"]) for row in paid) == sorted(f"thread-{number}" for number in range(starts))
    assert len({row["key"] for row in paid}) == starts
    assert len(ledger.rows("ended")) + len(ledger.rows("held")) == N_CALLERS * starts
    assert ledger.rows("held"), "no two calls met"


@pytest.mark.thorough  # three processes; quick: test_of_many_tasks_one_resumes_the_thread
def test_three_processes_pay_once(tmp_path):
    check_paid_once(call_together(str(tmp_path / "checkpoints.db"), tmp_path, 3), 3)


@pytest.mark.thorough
def test_three_processes_pay_once_in_each_of_a_hundred_threads(tmp_path):
    check_paid_once(call_together(str(tmp_path / "checkpoints.db"), tmp_path, 100), 100)


async def test_of_many_tasks_one_resumes_the_thread(ledger):
    graph, config = payer(ledger, InMemorySaver(), "a")
    break_off(graph, config)
    ended = await asyncio.gather(*(graph.ainvoke(None, config) for _ in range(5)), return_exceptions=True)
    assert sorted(type(each).__name__ for each in ended) == ["ThreadHeld"] * 4 + ["dict"]
    assert len(ledger.rows("refund")) == 1


async def test_an_async_database_admits_one_of_many_tasks(ledger, tmp_path):
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        graph, config = payer(ledger, saver, "a")
        ended = await asyncio.gather(*(graph.ainvoke(start(), config) for _ in range(3)), return_exceptions=True)
        assert sorted(type(each).__name__ for each in ended) == ["ThreadHeld"] * 2 + ["dict"]
        [row] = await (await saver.conn.execute("select count(*) from amc_leases")).fetchall()
        assert row[0] == 0, "a finished run leaves a record"
    assert len(ledger.rows("refund")) == 1


def test_a_second_caller_hears_who_runs_the_thread_and_until_when(ledger):
    graph, config = payer(ledger, InMemorySaver(), "a")
    stream = graph.stream(start(), config, stream_mode="updates")
    next(stream)
    before = time.time()
    with pytest.raises(ThreadHeld, match=r"'a' is run by process \d+ on .*its lease ends at 20\d\d-") as refused:
        graph.invoke(start(), config)
    assert refused.value.holder is not None
    assert refused.value.holder.split()[1] == str(os.getpid())
    assert refused.value.until is not None
    assert before < refused.value.until <= time.time() + lease.LASTS_S
    stream.close()
    assert graph.invoke(None, config)["messages"][-1].text == "done"
    assert len(ledger.rows("refund")) == 1


def test_a_caller_whose_lease_ended_stops_before_it_pays(ledger, tmp_path, monkeypatch):
    """As on two hosts, of which the first was suspended for so long that its lease ended."""
    places = iter(range(10_000))
    monkeypatch.setattr(lease, "_place", lambda: f"host {next(places)}")
    monkeypatch.setattr(lease, "LASTS_S", -1.0)
    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        first, config = payer(ledger, saver, "a")
        second, _ = payer(ledger, saver, "a")
        stream = first.stream(start(), config, stream_mode="updates")
        while "resample" not in next(stream):
            pass
        assert second.invoke(None, config)["messages"][-1].text == "done"
        with pytest.raises(ThreadHeld, match="was taken over by"):
            list(stream)
        assert len(ledger.rows("refund")) == 1
        assert second.invoke(None, config)["messages"][-1].text == "done"
    assert len(ledger.rows("refund")) == 1


@pytest.mark.thorough  # a process; quick: test_the_lease_of_a_process_that_has_ended_is_taken_over_at_once
def test_a_dead_holder_is_taken_over_at_once(ledger, tmp_path):
    """The process dies within its payment, after it was made."""
    database = str(tmp_path / "checkpoints.db")
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.population.commits.callers import opened, payer\n"
        "from tests.population.commits.ledger import Ledger, start\n"
        "class Dies(Ledger):\n"
        "    def add(self, name, **args):\n"
        "        super().add(name, **args)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "with opened(sys.argv[1]) as saver:\n"
        "    graph, config = payer(Dies(Path(sys.argv[2])), saver, 'a')\n"
        "    graph.invoke(start(), config)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", script, database, str(ledger.path)], cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert died.returncode == -signal.SIGKILL
    with SqliteSaver.from_conn_string(database) as saver:
        graph, config = payer(ledger, saver, "a")
        # A new message asks as None does, and is not read.
        for given in (start(), None):
            [asked] = graph.invoke(given, config)["__interrupt__"]
            assert asked.value["name"] == "refund"
            assert ("unread" in asked.value) == (given is not None)
        messages = graph.get_state(config).values["messages"]
        assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
        answer = graph.invoke(Command(resume="run again"), config)
        assert answer["messages"][-1].text == "done"
    first, again = ledger.rows("refund")
    assert first["key"] == again["key"], "a provider could not tell that it is the same payment"


def test_a_new_message_does_not_restart_a_run_that_has_paid(ledger):
    graph, config = payer(ledger, InMemorySaver(), "a", horizon=8)
    for chunk in graph.stream(start(), config, stream_mode="updates"):
        if "commit" in chunk:
            break
    assert len(ledger.rows("refund")) == 1
    with pytest.raises(CommitError, match=r"after it made 1 commit call.*first finish it with invoke\(None, config\)"):
        graph.invoke(start(), config)
    assert graph.invoke(None, config)["messages"][-1].text == "done"
    assert len(ledger.rows("refund")) == 1
    graph.invoke(start(), config)  # The next turn of the conversation.
    assert len(ledger.rows("refund")) == 1, "the agent sees its payment in the messages"


@variants("given", [None, start()], ids=["None", "message"])
def test_a_run_that_has_paid_and_lost_its_points_is_not_restarted(ledger, given):
    saver = InMemorySaver()
    graph, config = payer(ledger, saver, "a")
    for chunk in graph.stream(start(), config, stream_mode="updates"):
        if "commit" in chunk:
            break
    saver.delete_thread("a/amc")
    with pytest.raises(CommitError, match="made 1 commit call"):
        graph.invoke(given, config)
    assert len(ledger.rows("refund")) == 1
    graph.forget(config)
    graph.invoke(start(), config)
    assert len(ledger.rows("refund")) == 2, "its owner has asked for a new run"


def test_a_run_that_writes_no_checkpoints_is_refused(ledger):
    graph, config = payer(ledger, InMemorySaver(), "a")
    with pytest.raises(AgentContractError, match='durability="exit"'):
        graph.invoke(start(), config, durability="exit")
    assert ledger.rows("refund") == []


class Plain(InMemorySaver):
    """A checkpointer of another kind."""


def test_a_checkpointer_without_compare_and_swap_is_refused_for_commits(ledger, monkeypatch):
    monkeypatch.setattr("amc_agents.population.features.durable.lease.InMemorySaver", SqliteSaver)
    graph, config = payer(ledger, Plain(), "a")
    with pytest.raises(AgentContractError, match="the checkpointer Plain cannot tell two callers"):
        graph.invoke(start(), config)

    class Swapping(Plain):
        def __init__(self):
            super().__init__()
            self.records = {}

        async def aread_record(self, key):
            return self.records.get(key)

        async def aswap_record(self, key, old, new):
            if self.records.get(key) != old:
                return False
            self.records[key] = new
            return True

    graph, config = payer(ledger, Swapping(), "a")
    assert graph.invoke(start(), config)["messages"][-1].text == "done"
    assert len(ledger.rows("refund")) == 1


def test_a_retry_has_the_key_of_the_first_attempt_and_another_call_has_another(ledger):
    @tool
    def refund(amount: int) -> str:
        """Pay, and lose the bank's first two answers."""
        ledger.add("refund", amount=amount, key=current_commit().key)
        if len(ledger.rows("refund")) < 3:
            raise ConnectionError("no answer")
        return "paid"

    def respond(messages):
        paid = len(results(messages, "refund"))
        return "done" if paid == 2 else AIMessage("", tool_calls=[call("refund", f"r{paid}", amount=5)])

    retries = ToolRetryMiddleware(max_retries=3, initial_delay=0.0, jitter=False)
    agent = create_agent(ScriptedChatModel(respond=respond), [refund], middleware=[retries])
    graph = amc(agent, lambda trajectories: [1.0 for _ in trajectories], tools={"refund": Retried(3)}, n_particles=2,
                checkpointer=InMemorySaver())  # fmt: skip
    graph.invoke(start(), {"configurable": {"thread_id": "a"}})
    keys = [row["key"] for row in ledger.rows("refund")]
    assert len(keys) == 4
    assert len(set(keys[:3])) == 1
    assert keys[3] != keys[0]


def test_deferred_calls_have_keys_too():
    calls = DeferredCalls([Commit("refund", {}, None, None, "not run")] * 2)
    keys = []
    for place in range(2):
        with calls.recording(place) as outcome:
            keys.append(current_commit().key)
            outcome.append("paid")
    assert len(set(keys)) == 2
    with DeferredCalls(calls).recording(1) as outcome:
        assert current_commit().key == keys[1]
        outcome.append("paid")


def test_outside_of_a_run_each_commit_has_a_key_of_its_own():
    assert current_commit().key != current_commit().key


class Clock:
    """A wall clock that jumps."""

    def __init__(self, monkeypatch):
        self.ahead = 0.0
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() + self.ahead)


@pytest.mark.parametrize(
    ("jump", "held"),
    [(0.0, True), (59.0, True), (61.0, False), (-300.0, True), (-86_400.0, False)],
    ids=["now", "before its end", "after its end", "five minutes slow", "a day slow"],
)
async def test_clocks_decide_only_when_another_host_takes_over(monkeypatch, jump, held):
    saver, clock = InMemorySaver(), Clock(monkeypatch)
    monkeypatch.setattr(lease, "_place", lambda: "host a")
    first = await lease.Lease.take(saver, "t", "t/amc", asynchronous=True)
    monkeypatch.setattr(lease, "_place", lambda: "host b")
    clock.ahead = jump
    if held:
        with pytest.raises(ThreadHeld):
            await lease.Lease.take(saver, "t", "t/amc", asynchronous=True)
        await first.record(lease.Journal("p", 1))
    else:
        second = await lease.Lease.take(saver, "t", "t/amc", asynchronous=True)
        with pytest.raises(ThreadHeld):  # Whatever the clocks say, the first one journals nothing any more.
            await first.record(lease.Journal("p", 1))
        await second.record(lease.Journal("q", 1))
        await second.release(finished=True)
    await first.release(finished=True)


async def test_the_lease_of_a_process_that_has_ended_is_taken_over_at_once(monkeypatch):
    saver = InMemorySaver()
    first = await lease.Lease.take(saver, "t", "t/amc", asynchronous=True)
    monkeypatch.setattr(lease, "_started", lambda process_id: "later, as another process of the same number")
    second = await lease.Lease.take(saver, "t", "t/amc", asynchronous=True)
    with pytest.raises(ThreadHeld):
        await first.record(lease.Journal("p", 1))
    await second.release(finished=True)
    await first.release(finished=True)


async def test_a_lease_is_renewed_while_its_call_runs(monkeypatch):
    saver = InMemorySaver()
    monkeypatch.setattr(lease, "_RENEWED_S", 0.01)
    first = await lease.Lease.take(saver, "t", "t/amc", asynchronous=True)
    text = first._text
    for _ in range(500):
        await asyncio.sleep(0.01)
        if first._text != text:
            break
    assert first._text != text
    await first.record(lease.Journal("p", 1))
    await first.release(finished=True)
    after = await lease.Lease.take(saver, "t", "t/amc", asynchronous=True)
    assert after.journal == lease.Journal()
    await after.release(finished=True)


def test_threads_of_a_process_take_turns(ledger):
    graph, config = payer(ledger, InMemorySaver(), "a")
    break_off(graph, config)
    refused = []

    def resume():
        try:
            graph.invoke(None, config)
        except ThreadHeld as error:
            refused.append(error)

    threads = [threading.Thread(target=resume) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(ledger.rows("refund")) == 1
