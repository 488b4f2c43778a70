"""LLM-PSRL: exact roles make it classic PSRL, and a role that fails leaves the posterior as it was."""

from __future__ import annotations

import asyncio
import logging

import numpy as np
import pytest
from langchain_core.messages import HumanMessage

from amc_agents.errors import ConfigurationError, RoleError, UpdateError
from amc_agents.models.seeding import particle_rng
from amc_agents.psrl.posterior.memory import InMemoryPosterior
from amc_agents.psrl.posterior.priors import impossible
from amc_agents.psrl.posterior.updates import Learning
from amc_agents.psrl.roles import ChatSampler, ChatUpdater, read_step
from amc_agents.types import Task
from amc_agents_exploration.episodic import LlmPosteriorSampling, play_episode
from amc_agents_exploration.exact import ClassicPosteriorSampling, exact_model
from amc_agents_exploration.policy import ChatPolicy
from amc_agents_exploration.testing import exact_roles_model
from amc_agents_exploration.worlds import (
    ExplorationWorld,
    bandit_task,
    episodes,
    lock_task,
    read_swum,
    riverswim_task,
)

TASKS = {"bandit": (bandit_task, 1, 20), "lock": (lock_task, 3, 8), "riverswim": (riverswim_task, 6, 8)}


def exact_answers(task):
    """The exact chat model's script, without the chat model around it."""
    respond = exact_roles_model(task).respond

    async def answers(prompts):
        return [respond([HumanMessage(prompt)]) for prompt in prompts]

    return answers


def of_roles(task, *, sampler=None, policy=None, updater=None, memory=None, **more):
    exact = exact_answers(task)
    memory = memory or InMemoryPosterior(str(exact_model(task).prior(task)))
    return LlmPosteriorSampling(
        memory,
        sampler or ChatSampler(exact),
        policy or ChatPolicy(exact),
        updater or ChatUpdater(exact),
        **more,
    )


async def trial(task, agent, n_episodes, horizon, seed=0):
    rng = np.random.default_rng(seed)
    return [
        await play_episode(ExplorationWorld(), episode, agent, rng, horizon=horizon)
        for episode in episodes(task, n_episodes)
    ]


def actions(played):
    return [[step.action for step in trajectory.steps] for trajectory in played]


@pytest.mark.thorough
@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("update", ["trajectory", "step"])
async def test_exact_roles_are_classic_psrl(name, update):
    make, horizon, n_episodes = TASKS[name]
    for seed in range(4):
        task = make(seed)
        classic = ClassicPosteriorSampling(exact_model(task))
        agent = of_roles(task, learning=Learning(update=update))
        theirs = await trial(task, classic, n_episodes, horizon, seed)
        ours = await trial(task, agent, n_episodes, horizon, seed)
        assert actions(ours) == actions(theirs)
        assert (await agent.memory.head()).text == str(classic.posterior)
        n_steps = sum(len(trajectory.steps) for trajectory in ours)
        n_updates = n_episodes if update == "trajectory" else n_steps
        assert len(await agent.memory.history()) == 1 + n_updates


@pytest.mark.parametrize("name", TASKS)
async def test_exact_roles_by_name_need_no_model(name):
    make, horizon, n_episodes = TASKS[name]
    task = make(3)
    memory = InMemoryPosterior(str(exact_model(task).prior(task)))
    ours = await trial(task, LlmPosteriorSampling(memory, "exact", "exact", "exact"), n_episodes, horizon)
    theirs = await trial(task, ClassicPosteriorSampling(exact_model(task)), n_episodes, horizon)
    assert actions(ours) == actions(theirs)


async def test_each_role_has_a_part_in_it():
    """A role that is a little wrong shows in the actions, so the tests above can fail."""
    task = bandit_task(5)
    exact = exact_answers(task)
    theirs = actions(await trial(task, ClassicPosteriorSampling(exact_model(task)), 20, 1))

    async def forgets(prompts):
        return ["Posterior:\n" + prompt.split("<posterior>\n")[1].split("\n</posterior>")[0] for prompt in prompts]

    async def first_arm(prompts):
        return [f"Action: {task.payload.arms[0]}" for _ in prompts]

    async def own_luck(prompts):
        particle_rng().random()
        return await exact(prompts)

    wrong_roles = {"updater": ChatUpdater(forgets), "policy": ChatPolicy(first_arm), "sampler": ChatSampler(own_luck)}
    for name, wrong in wrong_roles.items():
        assert actions(await trial(task, of_roles(task, **{name: wrong}), 20, 1)) != theirs


async def test_the_policy_cache_asks_once_for_each_state():
    task, prompts_sent = riverswim_task(2), []
    exact = exact_answers(task)

    async def counted(prompts):
        prompts_sent.extend(prompts)
        return await exact(prompts)

    def cave(trajectory):
        return read_swum(trajectory.steps[-1].observation).arrived if trajectory.steps else 1

    agent = of_roles(task, policy=ChatPolicy(counted), cache_by=cave)
    n_states = 0
    for trajectory in await trial(task, agent, 4, 6):
        chosen = {}
        for t, step in enumerate(trajectory.steps):
            assert chosen.setdefault(cave(trajectory.prefix(t)), step.action) == step.action
        n_states += len(chosen)
    assert len(prompts_sent) == n_states < 24


def saying(*texts):
    """Answers with these texts in turn. An exception is raised, and None never arrives."""
    remaining = list(texts)

    async def answers(prompts):
        sent = []
        for _ in prompts:
            answer = remaining.pop(0)
            if answer is None:
                await asyncio.sleep(60)
            if isinstance(answer, Exception):
                raise answer
            sent.append(answer)
        return sent

    return answers


class Refused(Exception):
    """An error of the provider."""


CORRUPT = {
    "wrong format": (("I would say 7", "I would say 7"), "did not answer in the requested form"),
    "empty": (("", ""), "did not answer in the requested form"),
    "refused": ((Refused("not for me"),), "Refused: not for me"),
    "time-out": ((None,), "within 0.02 seconds"),
}
corrupted = pytest.mark.parametrize(("answers_given", "reason"), CORRUPT.values(), ids=CORRUPT)


@corrupted
async def test_a_sampler_that_fails(answers_given, reason):
    task = lock_task(1)
    agent = of_roles(task, sampler=ChatSampler(saying(*answers_given), timeout=0.02))
    with pytest.raises(RoleError, match=reason) as caught:
        await agent.begin(task, np.random.default_rng(0))
    assert caught.value.role == "posterior sampler"
    assert len(await agent.memory.versions()) == 1
    assert not await agent.memory.pending()


@corrupted
async def test_a_policy_that_fails_loses_nothing_of_what_was_seen(answers_given, reason):
    task = lock_task(1)
    agent = of_roles(task, policy=ChatPolicy(saying("Action: 4", *answers_given), timeout=0.02))
    with pytest.raises(RoleError, match=reason) as caught:
        await play_episode(ExplorationWorld(), task, agent, np.random.default_rng(0), horizon=3)
    assert caught.value.role == "policy"
    assert len(await agent.memory.versions()) == 1
    await agent.begin(task, np.random.default_rng(1))
    (_, learnt) = await agent.memory.history()
    assert "Action: 4" in learnt.evidence.observation
    assert len(learnt.text) < len((await agent.memory.get("1")).text), "fewer codes are possible now"


@corrupted
async def test_an_updater_that_fails_leaves_the_posterior_and_the_observations_wait(answers_given, reason):
    task = lock_task(1)
    good = exact_answers(task)
    broken = True

    async def answers(prompts):
        return (
            await (saying(*answers_given) if broken else good)(prompts)
            if not repeated(prompts)
            else [answers_given[-1]]
        )

    def repeated(prompts):
        return broken and "Your last answer" in prompts[0]

    agent = of_roles(task, updater=ChatUpdater(answers, timeout=0.02))
    with pytest.raises(UpdateError, match=reason):
        await play_episode(ExplorationWorld(), task, agent, np.random.default_rng(0), horizon=3)
    assert len(await agent.memory.versions()) == 1
    assert len(await agent.memory.pending()) == 1
    broken = False
    await agent.begin(task, np.random.default_rng(1))
    assert len(await agent.memory.history()) == 2
    assert not await agent.memory.pending()


async def test_a_failed_update_can_be_skipped(caplog):
    task = lock_task(1)
    agent = of_roles(task, updater=ChatUpdater(saying(*["no"] * 40)), learning=Learning(on_update_error="keep"))
    with caplog.at_level(logging.WARNING):
        await trial(task, agent, 2, 3)
    assert len(await agent.memory.versions()) == 1
    assert len(await agent.memory.pending()) == 2
    assert "stays at version 1" in caplog.text


async def test_contradictions(caplog):
    """A hypothesis that cannot be true is drawn again; a posterior that forgets is written again, then reported."""
    task = lock_task(1)
    again = of_roles(task, sampler=ChatSampler(saying("Hypothesis: 111", "Hypothesis: 123"), check=impossible))
    await again.begin(task, np.random.default_rng(0))
    assert again.hypothesis == "123"
    never = of_roles(task, sampler=ChatSampler(saying("Hypothesis: 111", "Hypothesis: 222"), check=impossible))
    with pytest.raises(RoleError, match="'222' is not among the 720"):
        await never.begin(task, np.random.default_rng(0))

    prior = "The first digit is one of 1 and 2.\nThe second digit may be anything at all."
    prompts_sent = []

    async def forgetful(prompts):
        prompts_sent.extend(prompts)
        return ["Posterior: The first digit is one of 1 and 2." for _ in prompts]

    agent = of_roles(
        task,
        memory=InMemoryPosterior(prior),
        sampler=ChatSampler(saying("Hypothesis: 123")),
        policy=ChatPolicy(saying(*["Action: 1"] * 3)),
        updater=ChatUpdater(forgetful),
    )
    with caplog.at_level(logging.WARNING):
        await trial(task, agent, 1, 3)
    assert (await agent.memory.head()).dropped == ("The second digit may be anything at all.",)
    assert len(prompts_sent) == 2
    assert "- The second digit may be anything at all." in prompts_sent[1]
    assert "dropped known statements" in caplog.text


async def test_an_action_that_the_world_does_not_know_is_the_agents_mistake():
    task = lock_task(1)
    agent = of_roles(task, policy=ChatPolicy(saying("Action: open", "Action: 1", "Action: 2")))
    (played,) = await trial(task, agent, 1, 3)
    assert "cannot be entered" in played.steps[0].observation


@pytest.mark.parametrize(
    ("text", "action", "thought"),
    [
        ("Action: 4", "4", ""),
        ("It is four.\nAction: 4 ", "4", "It is four."),
        ("Action: 3\nNo.\nAction: 4", "4", "Action: 3\nNo."),
    ],
)
def test_reading_an_action(text, action, thought):
    step = read_step(text)
    assert (step.action, step.thought) == (action, thought)


@pytest.mark.parametrize("text", ["4", "", "Action:", "Action: 4\nand more", "my Action: 4"])
def test_texts_without_an_action(text):
    assert read_step(text) is None


def test_a_prompt_that_leaves_the_hypothesis_out():
    with pytest.raises(ConfigurationError, match="needs \\['episode', 'hypothesis', 'world'\\]"):
        ChatPolicy(saying(), prompt="Act in {world}: {episode}")


def test_a_world_without_an_exact_model_is_refused():
    agent = LlmPosteriorSampling(InMemoryPosterior("?"), "exact", "exact", "exact")
    with pytest.raises(ConfigurationError, match="has no exact model"):
        asyncio.run(agent.begin(Task("t", "Do it."), np.random.default_rng(0)))


@pytest.mark.parametrize(("horizon", "truncated"), [(2, True), (6, False), (9, False)])
async def test_an_episode_that_its_horizon_cut_says_so(horizon, truncated):
    agent = ClassicPosteriorSampling(exact_model(riverswim_task(0)))
    world = ExplorationWorld()
    played = await play_episode(world, riverswim_task(0), agent, np.random.default_rng(0), horizon=horizon)
    assert played.done
    assert played.truncated == truncated
