"""One of several processes that call the same threads together: `python -m ... database ledger folder rank starts`.

The database is a SQLite file or the URL of a PostgreSQL server. Each thread is first broken off before its refund; then
all processes resume it at once.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver

from amc_agents import current_commit
from amc_agents.errors import ThreadHeld
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import EFFECTS, Ledger, call, results, start

N_CALLERS = 3


def opened(database: str):
    """A checkpointer on the database."""
    if database.startswith("postgres"):
        return import_module("langgraph.checkpoint.postgres").PostgresSaver.from_conn_string(database)
    return SqliteSaver.from_conn_string(database)


def payer(ledger: Ledger, saver, thread: str, **settings):
    """An agent that looks, and then pays one refund for its thread, and the config of the thread."""

    def respond(messages):
        if results(messages, "refund"):
            return "done"
        name = "refund" if results(messages, "look") else "look"
        return AIMessage("", tool_calls=[call(name, name)])

    @tool
    def look() -> str:
        """Look."""
        return "open"

    @tool
    def refund() -> str:
        """Pay."""
        ledger.add("refund", thread=thread, key=current_commit().key)
        return "paid"

    agent = create_agent(ScriptedChatModel(respond=respond), [look, refund])
    graph = amc(agent, lambda trajectories: [len(each.steps) for each in trajectories], tools=EFFECTS, n_particles=2,
                resample=AtSteps(1), beta=1.0, checkpointer=saver, **settings)  # fmt: skip
    return graph, {"configurable": {"thread_id": thread}}


def break_off(graph, config):
    """Start a run, and close its stream after its first resampling."""
    for chunk in graph.stream(start(), config, stream_mode="updates"):
        if "resample" in chunk:
            return
    raise AssertionError("the run ended without a resampling")


def main(database: str, ledger: Ledger, folder: Path, rank: int, starts: int) -> None:
    with opened(database) as saver:
        for number in range(starts):
            graph, config = payer(ledger, saver, f"thread-{number}")
            if number % N_CALLERS == rank:
                break_off(graph, config)
            meet(folder, number, rank)
            try:
                graph.invoke(None, config)
                ledger.add("ended", thread=f"thread-{number}")
            except ThreadHeld:
                ledger.add("held", thread=f"thread-{number}")
            meet(folder, number + starts, rank)


def meet(folder: Path, number: int, rank: int) -> None:
    """Wait until all processes are here."""
    (folder / f"{number}-{rank}").touch()
    latest = time.monotonic() + 60
    while not all((folder / f"{number}-{other}").exists() for other in range(N_CALLERS)):
        assert time.monotonic() < latest, "another caller has failed"
        time.sleep(0.005)


if __name__ == "__main__":
    database, ledger_path, folder, rank, starts = sys.argv[1:]
    main(database, Ledger(Path(ledger_path)), Path(folder), int(rank), int(starts))
