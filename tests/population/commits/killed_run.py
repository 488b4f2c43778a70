"""A run with commit tools, in a process of its own that a test kills: `python -m ... folder`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import EFFECTS, Ledger, call, prefers_large_refunds, results, start

N_REFUNDS = 3
THREAD = {"configurable": {"thread_id": "killed"}}


def policy(messages):
    """Look and refund in turn; each amount is that of its place, so that a repeated refund shows."""
    paid, looked = len(results(messages, "refund")), len(results(messages, "look"))
    if paid == N_REFUNDS:
        return "done"
    if looked <= paid:
        return AIMessage("", tool_calls=[call("look", f"look-{looked}", item=looked)])
    return AIMessage("", tool_calls=[call("refund", f"refund-{paid}", amount=paid)])


def shop(ledger: Ledger):
    @tool
    def look(item: int) -> str:
        """Look."""
        return f"item {item}"

    @tool
    def refund(amount: int) -> str:
        """Pay."""
        time.sleep(0.02)
        ledger.add("refund", amount=amount)
        time.sleep(0.02)
        return f"paid {amount}"

    def respond(messages):
        ledger.add("model")
        return policy(messages)

    return create_agent(ScriptedChatModel(respond=respond), [look, refund])


def go_on(folder: Path):
    """Start or go on with the run in a folder; return "asked", "ended" if it had ended, or the run."""
    ledger = Ledger(folder / "ledger.db")
    with SqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        graph = amc(shop(ledger), prefers_large_refunds, tools=EFFECTS, n_particles=3, resample=AtSteps(1, 3, 5),
                    checkpointer=saver, seed=1)  # fmt: skip
        state = graph.get_state(THREAD)
        waiting = [asked for task in state.tasks for asked in task.interrupts]
        if state.values and not state.tasks:  # A task whose writes are stored is not in `next`, but has yet to end.
            return "ended"
        given = None if state.values else start()
        if waiting:
            args = waiting[0].value["args"]
            ran = args in ledger.rows("refund")  # As a person who looks into the bank's books.
            given = Command(resume={"ran": f"paid {args['amount']}"} if ran else "run again")
        result = None
        for mode, chunk in graph.stream(given, THREAD, stream_mode=["custom", "updates"]):
            if mode == "updates" and "__interrupt__" in chunk:
                result = "asked"
            if mode == "custom" and chunk.get("type") == "amc.run":
                result = chunk["run"]
        if result is None and not graph.get_state(THREAD).tasks:
            return "ended"  # It was killed after its last node had been stored, and before its last checkpoint.
        assert result is not None, "the graph ended without a run"
        return result


if __name__ == "__main__":
    go_on(Path(sys.argv[1]))
