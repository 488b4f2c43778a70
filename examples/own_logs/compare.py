"""Compare a single run, Best-of-N and AMC on new tickets; both choose by the critic, which sees no outcome."""

from __future__ import annotations

import sys
from typing import Any

from amc_agents import AtSteps, Never, amc
from amc_agents.bench.statistics import estimate, paired
from examples.own_logs.agent import make_agent, remember, solved, ticket

FIRST, TICKETS, PARTICLES = 10_000, 80, 8


def main(critic: str) -> None:
    """Print the share of solved tickets, and the paired differences of the methods."""
    agent = make_agent(seed=1)
    settings: dict[str, Any] = dict(n_particles=PARTICLES, beta=0.1, stateless_tools=True, horizon=12)
    graphs = {
        "Best-of-8": amc(agent, critic, resample=Never(), **settings),
        "AMC": amc(agent, critic, resample=AtSteps(1, 2, 3, 4), **settings),
    }
    shares: dict[str, dict[tuple[str, int], float]] = {}

    def note(name: str, number: int, score: float) -> None:
        shares.setdefault(name, {})[str(number), 0] = score

    for number in range(FIRST, FIRST + TICKETS):
        given = {"messages": [("user", remember(ticket(number)))]}
        note("single run", number, solved(agent.invoke(given)["messages"]))
        for name, graph in graphs.items():
            run = graph.run(given)
            outcomes = [solved(output["messages"]) for output in run.outputs]
            note(name, number, solved(run.best_output["messages"]))
            note(f"{name}, if the best of all were known", number, max(outcomes))
            note(f"{name}, mean of its runs", number, sum(outcomes) / len(outcomes))
    for name, share in shares.items():
        figure = estimate(share)
        print(f"{name:45} {figure.mean:.3f} +- {figure.standard_error:.3f}")
    for a, b in (("AMC", "Best-of-8"), ("Best-of-8", "single run")):
        gain = paired(shares[a], shares[b])
        print(f"{a} minus {b}: {gain.difference:+.3f} (95% interval {gain.low:+.3f} to {gain.high:+.3f})")


if __name__ == "__main__":
    main(*sys.argv[1:])
