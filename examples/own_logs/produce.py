"""Run the agent as in production: a checkpointer saves every conversation, and the outcomes are written later."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver

from examples.own_logs.agent import make_agent, remember, solved, ticket

TICKETS, RUNS = 200, 5


def main(folder: str = ".") -> None:
    """Write threads.sqlite and outcomes.csv into a folder."""
    threads, table = Path(folder, "threads.sqlite"), Path(folder, "outcomes.csv")
    if threads.exists():
        raise SystemExit(f"{threads} exists: choose another folder")
    threads.parent.mkdir(parents=True, exist_ok=True)
    good = 0
    with SqliteSaver.from_conn_string(str(threads)) as saver, table.open("w", newline="") as file:
        outcomes = csv.writer(file)
        outcomes.writerow(["thread_id", "value"])
        agent = make_agent(saver, seed=0)
        for number in range(TICKETS):
            text = remember(ticket(number))
            for run in range(RUNS):
                thread = f"ticket-{number}-{run}"
                state = agent.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": thread}})
                outcome = solved(state["messages"])
                outcomes.writerow([thread, outcome])
                good += outcome
    print(f"{TICKETS * RUNS} conversations in {threads}, {good} of them solved: {table}")


if __name__ == "__main__":
    main(*sys.argv[1:])
