"""The whole graph in a world whose posterior and log Z are known exactly."""

import asyncio

import numpy as np
import pytest
from langchain_core.messages import HumanMessage

from amc_agents.models.seeding import particle_rng
from amc_agents.population.wrap import amc
from amc_agents.runtime.text_agent import text_agent
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from amc_agents.testing.enumerable import EnumerableWorld
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Task, TimeStep
from tests.arguments import arguments

pytestmark = pytest.mark.thorough

BETA = 0.5
WORLD = EnumerableWorld.random(3, max_depth=4, n_leaves=(8, 12))
TASK = Task("tree", "You stand at node 0.")


class Tree:
    """The enumerable tree as a text world: an action names a child."""

    def __init__(self, node=0):
        self.node = node

    async def reset(self, task):
        return TimeStep.restart(task.instruction)

    async def step(self, action):
        self.node = int(action)
        answer = TimeStep.termination if WORLD.is_leaf[self.node] else TimeStep.transition
        return answer(f"You stand at node {self.node}.", float(WORLD.rewards[self.node]))

    async def fork(self, seed):
        return Tree(self.node)

    async def close(self):
        pass


def node_of(text):
    return int(text.split()[-1].rstrip("."))


def policy(messages):
    node = node_of(messages[-1].text)
    child = particle_rng().choice(WORLD.children[node], p=WORLD.probabilities[node])
    return f"Action: {child}"


def start():
    return {"messages": [HumanMessage(TASK.instruction)]}


class Values:
    """An imperfect critic. With hidden rewards it predicts the whole return, which is exact at the end."""

    def __init__(self, hidden):
        whole = np.where(WORLD.is_leaf, WORLD.returns, WORLD.returns + WORLD.imperfect_critic)
        self.table = whole if hidden else WORLD.imperfect_critic

    async def values(self, trajectories):
        return self.table[[node_of(trajectory.steps[-1].observation) for trajectory in trajectories]]


def graph(schedule, hidden=False, n_particles=4, **settings):
    return amc(
        text_agent(ScriptedChatModel(respond=policy)),
        Values(hidden),
        **arguments(
            environment=lambda state: (Tree(), TASK),
            n_particles=n_particles,
            resample=schedule,
            beta=BETA,
            hide_rewards=hidden,
            **settings,
        ),
    )


@pytest.mark.parametrize(
    ("schedule", "hidden", "finished"),
    [
        (EveryStep(), False, "retire"),
        (EveryStep(), False, "keep"),
        (AtSteps(2), True, "retire"),
        (EssBelow(0.9), False, "retire"),
    ],
)
async def test_log_evidence_is_unbiased(schedule, hidden, finished):
    graphs = [graph(schedule, hidden, finished=finished, seed=seed) for seed in range(80)]
    runs = await asyncio.gather(*(graph.arun(start()) for graph in graphs))
    estimates = np.exp([run.log_evidence for run in runs])
    error = estimates.std(ddof=1) / np.sqrt(len(estimates))
    assert abs(estimates.mean() - np.exp(WORLD.log_evidence(BETA))) < 4 * error
    assert error < 0.1 * estimates.mean()


@pytest.mark.parametrize("finished", ["retire", "keep"])
async def test_the_weighted_particles_approach_the_posterior(finished):
    run = await graph(EveryStep(), n_particles=300, finished=finished, seed=1).arun(start())
    leaves = [node_of(trajectory.steps[-1].observation) for trajectory in run.population.trajectories]
    weights = np.exp(run.population.log_weights - run.log_evidence)
    estimate = np.bincount(leaves, weights=weights, minlength=len(WORLD.children))[WORLD.leaves]
    posterior, prior = WORLD.posterior(BETA), WORLD.pi
    assert 0.5 * np.abs(estimate - posterior).sum() < 0.09 < 0.5 * np.abs(prior - posterior).sum()


async def test_selecting_a_sample_draws_from_the_posterior():
    graphs = [graph(Never(), n_particles=8, select="sample", seed=seed) for seed in range(60)]
    runs = await asyncio.gather(*(graph.arun(start()) for graph in graphs))
    mean = np.mean([run.best.return_ for run in runs])
    returns = WORLD.returns[WORLD.leaves]
    target, prior = WORLD.posterior(BETA) @ returns, WORLD.pi @ returns
    assert abs(mean - target) < abs(mean - prior)
