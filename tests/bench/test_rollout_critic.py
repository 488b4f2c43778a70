from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from langchain_core.messages import AIMessage

from amc_agents.bench.rollout_critic import RolloutCritic
from amc_agents.envs.workshop import WorkshopWorld, parse_instruction
from amc_agents.models.seeding import particle_rng
from amc_agents.testing.checks import check_critic
from amc_agents.testing.scripted import ScriptedChatModel
from amc_agents.types import Step, Task, Trajectory

TEXT = """Crafting commands:
craft 1 rod using 1 clay
craft 1 rod using 1 flint

Goal: craft rod without flint."""
FETCH = Step("get 1 clay", "Got 1 clay")
MAKE = "craft 1 rod using 1 clay"


def respond(messages):
    """Fetches, then crafts or looks, with equal chances."""
    if len(messages) == 1:
        return AIMessage("Action: get 1 clay")
    return AIMessage(f"Action: {MAKE if particle_rng().random() < 0.5 else 'inventory'}")


def play(*steps, done=False):
    return Trajectory(Task("rod", TEXT), steps, done=done)


def critic_of(**settings):
    return RolloutCritic(ScriptedChatModel(respond=respond), WorkshopWorld, parse_instruction, **settings)


@pytest.mark.thorough
async def test_values_are_the_policys_chances_of_success():
    critic = critic_of(n_rollouts=400, horizon=3)
    values = await critic.values([play(), play(FETCH), play(FETCH, Step("inventory"))])
    assert values == pytest.approx([0.75, 0.75, 0.5], abs=0.08)


async def test_ends_and_the_horizon_leave_nothing_to_chance():
    spoiled = play(Step("get 1 flint"), Step("craft 1 rod using 1 flint"), done=True)
    made, cut = play(FETCH, Step(MAKE), done=True), play(FETCH, Step("inventory"), Step("inventory"))
    assert (await critic_of(n_rollouts=4, horizon=3).values([spoiled, made, cut])).tolist() == [0.0, 1.0, 0.0]


class Paying(WorkshopWorld):
    """Pays for every step too."""

    async def step(self, action):
        answer = await super().step(action)
        return replace(answer, reward=answer.reward + 0.25)


@pytest.mark.thorough
async def test_rewards_before_the_state_count():
    critic = RolloutCritic(ScriptedChatModel(respond=respond), Paying, parse_instruction, n_rollouts=400, horizon=3)
    values = await critic.values([play(FETCH), play(FETCH, Step("inventory"))])
    assert values == pytest.approx([0.25 + 0.5 * 1.25 + 0.5 * 0.5 + 0.25, 0.5 + 0.25 + 0.5], abs=0.08)


async def test_the_critic_keeps_the_contract():
    await check_critic(critic_of(n_rollouts=3), [play(), play(FETCH), play(FETCH, Step("inventory"))])


async def test_seeds_differ():
    plays = [play(FETCH)]
    values = [float((await critic_of(n_rollouts=16, horizon=3, seed=seed).values(plays))[0]) for seed in range(5)]
    assert len(set(values)) > 1
    assert np.all(np.array(values) <= 1)
