import numpy as np
import pytest

pytest.importorskip("jericho", reason="the package jericho is not installed")
from playing import NO_INFORM

if NO_INFORM:
    pytest.skip(NO_INFORM, allow_module_level=True)

from amc_agents_jericho import KEEP, JerichoWorld, generate_tasks

from amc_agents.testing import check_environment


async def play(task, error_rate=0.0, seed=0, horizon=200):
    world, rng = JerichoWorld(), np.random.default_rng(seed)
    await world.reset(task)
    rewards, actions, done = [], [], False
    while not done and len(actions) < horizon:
        actions.append(world.random_action(rng) if rng.random() < error_rate else world.expert_action())
        answer = await world.step(actions[-1])
        rewards.append(answer.reward)
        done = answer.done
    await world.close()
    return sum(rewards), actions, answer


async def test_a_generated_game_keeps_the_contract():
    for task in generate_tasks(30, "test"):
        score, actions, answer = await play(task)
        if score == pytest.approx(1.0) and actions.count("attack goblin") > 1:
            break
    assert answer.terminated
    await check_environment(JerichoWorld, task, actions, stochastic=True)


@pytest.mark.parametrize("error_rate", [0.0, 0.3])
async def test_the_expert_wins_unless_the_goblin_does_even_after_errors(error_rate):
    results = [await play(task, error_rate, seed) for seed, task in enumerate(generate_tasks(25, "train"))]
    assert all(answer.terminated for _, _, answer in results)
    for score, _, answer in results:
        assert ("You have won" in answer.observation) == (score == pytest.approx(1.0))
        assert score == pytest.approx(1.0) or "strikes you down" in answer.observation
    # Three misses in a row lose: 1 in 8 without errors, and more if an error wounds. 15 of 25 is far below both.
    assert sum(score == pytest.approx(1.0) for score, _, _ in results) >= 10


async def test_sub_goals_pay_as_they_are_reached():
    task = next(generate_tasks(1, "train"))
    world = JerichoWorld()
    await world.reset(task)
    rewards = {}
    done = False
    while not done:
        action = world.expert_action()
        answer = await world.step(action)
        rewards[action] = answer.reward
        done = answer.done
    await world.close()
    assert (rewards["take sword"], rewards["take key"]) == (pytest.approx(0.2), pytest.approx(0.2))


async def test_the_registered_world_can_be_played_and_is_reproducible():
    tasks, again = list(KEEP.tasks(2, "test", 0)), list(KEEP.tasks(2, "test", 0))
    assert tasks == again
    assert tasks[0].instruction != next(iter(KEEP.tasks(1, "train", 0))).instruction
    world = KEEP.make()
    assert (await world.reset(tasks[0])).observation == tasks[0].instruction
    await world.close()
