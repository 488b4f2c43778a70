"""Run the agent as in production: a checkpointer saves every conversation, and the outcomes are written later."""

from __future__ import annotations

import csv
from pathlib import Path

from langgraph.checkpoint.sqlite import SqliteSaver

from examples.own_logs.agent import make_agent, remember, solved, ticket

TICKETS, RUNS = 120, 5


def main() -> None:
    """Write threads.sqlite and outcomes.csv."""
    for path in ("threads.sqlite", "threads.sqlite-wal", "threads.sqlite-shm", "outcomes.csv"):
        Path(path).unlink(missing_ok=True)
    good = 0
    with SqliteSaver.from_conn_string("threads.sqlite") as saver, Path("outcomes.csv").open("w", newline="") as file:
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
    print(f"{TICKETS * RUNS} conversations in threads.sqlite, {good} of them solved: outcomes.csv")


if __name__ == "__main__":
    main()
