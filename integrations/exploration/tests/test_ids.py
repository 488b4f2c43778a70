"""LLM-IDS as an agent over episodes: with exact estimates it equals classic IDS."""

from __future__ import annotations

import numpy as np
import pytest
from langchain_core.messages import HumanMessage

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.ids import ChatEstimator, Estimates
from amc_agents.psrl.posterior.memory import InMemoryPosterior
from amc_agents.psrl.roles import ChatUpdater
from amc_agents.types import Task, Trajectory
from amc_agents_exploration.episodic import LlmInformationDirected, play_episode
from amc_agents_exploration.exact import ClassicInformationDirected, exact_model
from amc_agents_exploration.testing import exact_roles_model
from amc_agents_exploration.worlds import ExplorationWorld, episodes, informative_bandit_task, lock_task, riverswim_task

TRAJECTORY = Trajectory(Task("t", "Pull an arm."))


def exact_answers(task, prompts_sent):
    respond = exact_roles_model(task).respond

    async def answers(prompts):
        prompts_sent.append(len(prompts))
        return [respond([HumanMessage(prompt)]) for prompt in prompts]

    return answers


async def trial(task, agent, n_episodes, horizon):
    actions_played = []
    for number, episode in enumerate(episodes(task, n_episodes)):
        rng = np.random.default_rng([5, number])
        played = await play_episode(ExplorationWorld(), episode, agent, rng, horizon=horizon)
        actions_played.append([step.action for step in played.steps])
    return actions_played


@pytest.mark.parametrize(("make", "horizon"), [(informative_bandit_task, 1), (lock_task, 3)])
async def test_exact_estimates_are_classic_ids(make, horizon):
    for seed in range(2):
        task, prompts_sent = make(seed), []
        answers = exact_answers(task, prompts_sent)
        memory = InMemoryPosterior(str(exact_model(task).prior(task)))
        agent = LlmInformationDirected(memory, ChatEstimator(answers, answers), ChatUpdater(answers))
        theirs = await trial(task, ClassicInformationDirected(exact_model(task)), 5, horizon)
        ours = await trial(task, agent, 5, horizon)
        assert ours == theirs
        by_name = LlmInformationDirected(InMemoryPosterior(str(exact_model(task).prior(task))), "exact", "exact")
        assert await trial(task, by_name, 5, horizon) == theirs
        if horizon == 1:
            assert ours == [["0"]] + [[str(task.payload.best)]] * 4
        assert set(prompts_sent) == {1, len(task.payload.actions)}


async def test_a_world_without_exact_stakes_needs_an_estimator():
    agent = LlmInformationDirected(InMemoryPosterior("?"), "exact", "exact")
    with pytest.raises(ConfigurationError, match="no exact regret"):
        await agent.begin(riverswim_task(0), np.random.default_rng(0))


async def no_answers(prompts):
    return []


class Fixed:
    async def estimates(self, world, posterior, trajectory, actions):
        return Estimates(np.array([0.5]), np.array([1.0]))


async def test_who_lists_the_actions():
    agent = LlmInformationDirected(InMemoryPosterior("?"), Fixed(), ChatUpdater(no_answers))
    await agent.begin(TRAJECTORY.task, np.random.default_rng(0))
    with pytest.raises(ConfigurationError, match="give actions="):
        await agent.act(TRAJECTORY)
    listed = LlmInformationDirected(
        InMemoryPosterior("?"), Fixed(), ChatUpdater(no_answers), actions=lambda trajectory: ["wait"]
    )
    await listed.begin(TRAJECTORY.task, np.random.default_rng(0))
    assert (await listed.act(TRAJECTORY)).action == "wait"
