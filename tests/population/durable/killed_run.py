"""A process that runs a population, to be killed: python -m tests.population.durable.killed_run DATABASE LOG.

Each call of the model or critic appends a line to the log before it answers.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from langgraph.checkpoint.sqlite import SqliteSaver

from amc_agents import AmcSettings
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.durable.scenario import CONFIG
from tests.population.worlds import digits, start, sum_world

N, LENGTH = 4, 8


def graph(saver, log):
    """The graph, in the killed process and in others."""
    calls = os.open(log, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def respond(messages):
        os.write(calls, f"model {len(messages) // 2}\n".encode())
        time.sleep(0.002)
        return digits(messages)

    class LastDigit:
        async def values(self, trajectories):
            os.write(calls, f"critic {len(trajectories[0].steps)}\n".encode())
            return np.array([float(trajectory.steps[-1].action) for trajectory in trajectories])

    return amc(
        text_agent(ScriptedChatModel(respond=respond)),
        LastDigit(),
        environment=lambda state: sum_world(state, LENGTH),
        n_particles=N,
        resample=AtSteps(3, 6),
        settings=AmcSettings(durable_every=2),
        beta=1.0,
        seed=7,
        checkpointer=saver,
    )


def main(database: str, log: str) -> None:
    with SqliteSaver.from_conn_string(database) as saver:
        graph(saver, log).invoke(start(), CONFIG)


if __name__ == "__main__":
    main(*sys.argv[1:])
