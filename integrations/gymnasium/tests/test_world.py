import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="the package gymnasium is not installed")

import gymnasium
from amc_agents_gymnasium import GymnasiumTask, GymnasiumWorld, TextInterface, gymnasium_world
from amc_agents_gymnasium.toy_text import BLACKJACK, FROZEN_LAKE
from guessing import GUESSING, Both, Dice, Guess, NotText

from amc_agents.envs.registry import world, worlds
from amc_agents.errors import ConfigurationError, EnvironmentStateError, WorldError
from amc_agents.testing import check_environment
from amc_agents.types import Task


def first_task(spec, number=0):
    return next(iter(spec.tasks(1, "test", number)))


@pytest.mark.parametrize("fork", ["copy", "replay"])
async def test_a_text_environment_keeps_the_contract(fork):
    spec = gymnasium_world("guess", GUESSING, horizon=9, fork=fork)
    task = first_task(spec)
    await check_environment(spec.make, task, ["1", "word", *map(str, range(2, 10))])


async def test_a_process_isolates_an_environment_with_global_random_state():
    spec = gymnasium_world("dice", TextInterface(Dice), horizon=3, fork="process")
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    await check_environment(spec.make, Task("dice", "Roll.", GymnasiumTask(5)), ["roll"] * 3, stochastic=True)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before


async def test_copies_of_an_environment_with_global_random_state_are_caught():
    spec = gymnasium_world("dice", TextInterface(Dice), horizon=3)
    with pytest.raises(AssertionError):
        await check_environment(spec.make, Task("dice", "Roll.", GymnasiumTask(5)), ["roll"] * 3, stochastic=True)


@pytest.mark.parametrize("fork", ["copy", "replay"])
async def test_frozen_lake_keeps_the_contract(fork):
    spec = gymnasium_world("lake", interface_of(FROZEN_LAKE), horizon=30, fork=fork)
    task = first_task(spec, 3)
    await check_environment(spec.make, task, ["down", "right"] * 40, stochastic=True)


async def test_blackjack_keeps_the_contract():
    await check_environment(BLACKJACK.make, first_task(BLACKJACK), ["hit"] * 12, stochastic=True)


async def test_rewards_and_ends_are_gymnasiums():
    task = first_task(BLACKJACK)
    env = gymnasium.make("Blackjack-v1")
    env.reset(seed=task.payload.seed)
    played = BLACKJACK.make()
    assert (await played.reset(task)).observation == task.instruction
    for name, action in [("hit", 1), ("Stick.", 0)]:
        _, reward, terminated, truncated, _ = env.step(action)
        answer = await played.step(name)
        assert (answer.reward, answer.terminated, answer.truncated) == (reward, terminated, truncated)
        if terminated:
            break
    assert answer.done


async def test_the_limit_of_the_environment_truncates():
    limited = partial(gymnasium.make, "Blackjack-v1", max_episode_steps=1)
    spec = gymnasium_world("short", replace(blackjack_interface(), make=limited), horizon=9)
    cut = 0
    for task in spec.tasks(20, "train", 0):
        made = spec.make()
        await made.reset(task)
        answer = await made.step("hit")
        assert answer.done
        cut += answer.truncated
    assert 0 < cut < 20


async def test_the_end_by_the_rules_in_the_last_permitted_step_is_a_termination():
    spec = gymnasium_world("both", TextInterface(Both), horizon=1)
    made = spec.make()
    await made.reset(Task("both", "x", GymnasiumTask(0)))
    answer = await made.step("end")
    assert (answer.terminated, answer.truncated) == (True, False)


async def test_a_text_that_is_no_action_changes_nothing():
    made = BLACKJACK.make()
    await made.reset(first_task(BLACKJACK))
    refused = await made.step("double")
    assert refused.observation == "Invalid action: the actions are: stick, hit"
    assert (refused.reward, refused.done) == (0.0, False)


async def test_a_text_outside_of_the_text_space_is_no_action():
    made = GymnasiumWorld(GUESSING)
    await made.reset(Task("g", "x", GymnasiumTask(3)))
    assert (await made.step("??")).observation.startswith("Invalid action: an action is a text of Text(")


async def test_a_wrong_interface_is_an_error_that_says_what_is_missing():
    made = GymnasiumWorld(TextInterface(partial(gymnasium.make, "Blackjack-v1")))
    with pytest.raises(ConfigurationError, match="became a tuple: pass observation="):
        await made.reset(Task("b", "x", GymnasiumTask(3)))
    made = GymnasiumWorld(replace(blackjack_interface(), action=None))
    await made.reset(Task("b", "x", GymnasiumTask(3)))
    with pytest.raises(ConfigurationError, match=r"not text but Discrete\(2\): pass action="):
        await made.step("hit")
    with pytest.raises(EnvironmentStateError, match="got NoneType"):
        await made.reset(Task("b", "x"))
    with pytest.raises(ConfigurationError, match="copy, process, replay, got 'clone'"):
        gymnasium_world("g", GUESSING, horizon=1, fork="clone")


async def test_a_reward_that_is_no_number_is_an_error():
    made = GymnasiumWorld(TextInterface(NotText))
    await made.reset(Task("n", "x", GymnasiumTask(3)))
    with pytest.raises(WorldError, match="reward after 'go' is nan"):
        await made.step("go")


def test_splits_share_no_seed_and_tasks_are_numbered():
    train, test = ([*FROZEN_LAKE.tasks(5, split, 2)] for split in ("train", "test"))
    assert not {task.payload.seed for task in train} & {task.payload.seed for task in test}
    assert [task.id for task in test] == [f"gymnasium-frozen-lake/test/{number}" for number in range(2, 7)]
    assert len({task.instruction for task in test}) > 1
    with pytest.raises(ConfigurationError, match="got 'valid' and 0 to 0"):
        list(FROZEN_LAKE.tasks(1, "valid", 0))


@pytest.mark.parametrize("offered", [BLACKJACK, FROZEN_LAKE])
def test_offered_worlds_are_registered_and_list_their_actions(offered):
    name = first_task(offered).id.split("/")[0]
    assert offered.actions
    if name in worlds():  # Where this package is installed, not only on the path.
        assert world(name) is offered


def test_a_guess_is_rewarded():
    env = Guess()
    env.reset(seed=3)
    assert [env.step(str(number))[1] for number in range(1, 10)].count(1.0) == 1


def blackjack_interface():
    return interface_of(BLACKJACK)


def interface_of(spec):
    return spec.tasks.args[1]
