"""PSRL and IDS as nodes, and the ready agents for text worlds."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import HumanMessage
from langgraph.store.memory import InMemoryStore

from amc_agents.errors import ConfigurationError
from amc_agents.psrl.nodes import (
    exploring_text_agent,
    information_directed_nodes,
    posterior_sampling_nodes,
)
from amc_agents.psrl.posterior.store import StorePosterior
from amc_agents.runtime.world import use_environment
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents_exploration.exact import exact_model
from amc_agents_exploration.exact.roles import ExactSampler
from amc_agents_exploration.testing import exact_roles_model
from amc_agents_exploration.worlds import ExplorationWorld, episodes, informative_bandit_task, lock_task

both_ways = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


def enters_the_hypothesis(messages):
    """A lock's policy: the next digit of the code in its system prompt."""
    code = messages[0].text.split("<hypothesis>\n")[1][:3]
    return f"Action: {code[sum(message.type == 'ai' for message in messages)]}"


def play(agent, task, n_episodes, *, sync):
    """The actions of each episode, and its last observation."""

    async def play_one(episode):
        world = ExplorationWorld()
        await world.reset(episode)
        with use_environment(world):
            given = {"messages": [HumanMessage(episode.instruction)]}
            return agent.invoke(given) if sync else await agent.ainvoke(given)

    results = []
    for episode in episodes(task, n_episodes):
        output = asyncio.run(play_one(episode))
        assert set(output) == {"messages"}
        actions = [message.text for message in output["messages"] if message.type == "ai"]
        results.append((actions, output["messages"][-1].text))
    return results


@both_ways
def test_posterior_sampling_opens_a_lock(sync):
    task, store = lock_task(11), InMemoryStore()
    nodes = posterior_sampling_nodes(
        exact_roles_model(task),
        policy=ScriptedChatModel(respond=enters_the_hypothesis),
        prior=exact_model(task).prior(task),
        seed=0,
    )
    played = play(exploring_text_agent(nodes, store=store, name="explorer"), task, 10, sync=sync)
    memory = StorePosterior(store, "amc.posterior")
    history = asyncio.run(memory.history())
    sizes = [version.text.count(",") + 1 for version in history]
    assert sizes[0] == 720
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == 1, "ten attempts are enough for this lock and seed"
    assert task.payload.answer in history[-1].text
    assert played[-1][1].endswith("The lock opens.")
    assert all(task.payload.answer in version.text for version in history)


@both_ways
def test_information_directed_sampling_pulls_the_telling_arm_once(sync):
    task, store = informative_bandit_task(2, n_arms=6), InMemoryStore()
    nodes = information_directed_nodes(
        exact_roles_model(task), task.payload.actions, prior=exact_model(task).prior(task), seed=0
    )
    played = play(exploring_text_agent(nodes, store=store), task, 3, sync=sync)
    assert [actions for actions, _ in played] == [["0"], [str(task.payload.best)], [str(task.payload.best)]]
    (rewarded,) = play(exploring_text_agent(nodes, store=store, show_rewards=True), task, 1, sync=sync)
    assert rewarded[1] == f"{played[-1][1]}\nReward: 1"


def test_a_policy_is_required():
    with pytest.raises(ConfigurationError, match="no model acts"):
        posterior_sampling_nodes(ExactSampler(), updater=exact_roles_model(lock_task(0)))
