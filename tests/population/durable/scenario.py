"""A run that can be broken off at a call of its model or critic, for the tests of durable points."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps
from amc_agents.testing.scripted import ScriptedChatModel
from tests.arguments import arguments
from tests.population.worlds import digits, sum_world

CONFIG: Any = {"configurable": {"thread_id": "t"}}
LENGTH = 6
N = 5


class Scenario:
    """A run whose critic or model can be made to fail at a call, and that counts its calls."""

    def __init__(self, checkpointer=None, agent=None, **settings):
        self.model_calls = self.critic_calls = 0
        self.counting = threading.Lock()
        self.slow_model_s = 0.0
        self.first: dict[str, Any] = {}
        self.fails_at_critic_call = self.fails_at_model_call = None
        defaults = {
            "n_particles": N,
            "resample": AtSteps(2, 4),
            "seed": 3,
            "beta": 1.0,
            "quorum": N,
            "environment": lambda state: sum_world(state, LENGTH),
        }
        agent = agent or text_agent(ScriptedChatModel(respond=self.respond))
        self.graph = amc(agent, self, **arguments(checkpointer=checkpointer, **{**defaults, **settings}))

    def respond(self, messages):
        with self.counting:  # Particles call the model in threads.
            self.model_calls += 1
            number = self.model_calls
        time.sleep(self.slow_model_s)
        if number == self.fails_at_model_call:
            raise ConnectionError("the machine dies")
        return digits(messages)

    async def values(self, trajectories):
        self.critic_calls += 1
        if self.critic_calls == self.fails_at_critic_call:
            raise ConnectionError("the machine dies")
        return np.array([float(trajectory.steps[-1].action) for trajectory in trajectories])


def facts(run):
    """All that a run says, but for the ids of messages."""
    return {
        "log Z": run.log_evidence,
        "best": (run.best_index, [(step.action, step.observation, step.reward) for step in run.best.steps]),
        "ancestors": [None if point.ancestors is None else point.ancestors.tolist() for point in run.history],
        "retired": [point.retired for point in run.history],
        "values": [point.values.tolist() for point in run.history],
        "log-weights": [point.log_weights.tolist() for point in run.history],
        "returns": [trajectory.return_ for trajectory in run.population.trajectories],
        "texts": [[message.text for message in output["messages"]] for output in run.outputs],
        "final": run.population.log_weights.tolist(),
        "usage": run.usage,
        "seed": run.seed,
        "notes": run.notes,
        "config": run.config,
    }
