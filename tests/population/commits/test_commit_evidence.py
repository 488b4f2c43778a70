"""After a commit, log Z is that of the future, conditional on the chosen past: checked against its exact value."""

import asyncio

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.smc import AtSteps, EveryStep
from amc_agents.testing.scripted import ScriptedChatModel
from tests.population.commits.ledger import call, results, start

BETA = 0.7
PAST = 2.0
"""The return of the committed past, which log Z does not contain."""


@tool
def commit_now() -> str:
    """Commit."""
    return "committed"


@tool
def flip(side: int) -> str:
    """Earn the side."""
    return str(side)


def respond(messages):
    """Commit, then flip three coins, of which the last depends on the two before."""
    if not results(messages):
        return AIMessage("", tool_calls=[call("commit_now", "c")])
    sides = [int(message.content) for message in results(messages, "flip")]
    if len(sides) == 3:
        return "done"
    heads = 0.2 + 0.3 * sum(sides)
    side = int(particle_rng().random() < heads)
    return AIMessage("", tool_calls=[call("flip", f"f{len(sides)}", side=side)])


def exact_log_evidence():
    total = 0.0
    for sides in np.ndindex(2, 2, 2):
        p = 1.0
        for place, side in enumerate(sides):
            heads = 0.2 + 0.3 * sum(sides[:place])
            p *= heads if side else 1 - heads
        total += p * np.exp(sum(sides) / BETA)
    return float(np.log(total))


def earned(state):
    flips = sum(int(message.content) for message in results(state["messages"], "flip"))
    return flips + PAST * bool(results(state["messages"], "commit_now"))


def predicted(trajectories):
    """An inexact critic of the future return."""
    return [0.4 * max(0, 4 - sum(bool(step.observation) for step in each.steps)) for each in trajectories]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("schedule", "rewarded", "n_runs"),
    [
        (AtSteps(2), True, 20),
        pytest.param(EveryStep(), True, 60, marks=pytest.mark.thorough),
        pytest.param(AtSteps(2), False, 60, marks=pytest.mark.thorough),
        pytest.param(EveryStep(), False, 60, marks=pytest.mark.thorough),
    ],
)
async def test_the_evidence_is_conditional_on_the_committed_past(schedule, rewarded, n_runs):
    agent = create_agent(ScriptedChatModel(respond=respond), [commit_now, flip])

    def whole_return(trajectories):
        return [
            sum(int(step.observation) for step in each.steps if step.observation in "01" and step.observation)
            + (0.0 if each.done else 0.4 * (5 - len(each.steps)))
            for each in trajectories
        ]

    def graph(seed):
        return amc(
            agent, predicted if rewarded else whole_return, tools={"commit_now": "commit", "flip": "read"},
            reward=earned if rewarded else None, n_particles=5, beta=BETA, resample=schedule, seed=seed,
        )  # fmt: skip

    runs = await asyncio.gather(*(graph(seed).arun(start()) for seed in range(n_runs)))
    estimates = np.exp([run.log_evidence for run in runs])
    error = estimates.std(ddof=1) / np.sqrt(len(estimates))
    assert abs(estimates.mean() - np.exp(exact_log_evidence())) < 4 * error
    assert error < 0.25 * estimates.mean()
    assert {len(run.commits) for run in runs} == {1}
