import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("textworld", reason="the package textworld is not installed")

from amc_agents_textworld import GameSize, TextWorldWorld, generate_tasks, generated_game, story_task
from jericho import FrotzEnv

from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Task

SMALL = GameSize(n_rooms=2, n_objects=3, quest_length=3, n_quests=1)


@pytest.fixture(autouse=True, scope="module")
def games(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMC_TEXTWORLD_GAMES", str(tmp_path_factory.mktemp("games")))
        yield


@pytest.fixture(scope="module")
def small(games):
    return next(generate_tasks(1, "train", size=SMALL))


@pytest.fixture(scope="module")
def larger(games):
    return next(generate_tasks(1, "test"))


async def expert_play(task, error_rate=0.0):
    world, rng = TextWorldWorld(), np.random.default_rng(0)
    await world.reset(task)
    actions, rewards, done = [], [], False
    while not done and len(actions) < 100:
        actions.append(world.random_action(rng) if rng.random() < error_rate else world.expert_action())
        answer = await world.step(actions[-1])
        rewards.append(answer.reward)
        done = answer.done
    await world.close()
    return actions, rewards


async def test_the_contract_of_an_environment_is_kept(small):
    actions, _ = await expert_play(small)
    await check_environment(TextWorldWorld, small, actions)


@pytest.mark.parametrize("error_rate", [0.0, 0.3])
async def test_the_expert_earns_every_point_even_after_errors(larger, error_rate):
    _, rewards = await expert_play(larger, error_rate)
    assert sum(rewards) == pytest.approx(1.0)
    assert [reward for reward in rewards if reward] == [0.5, 0.5]


async def test_the_instruction_is_rules_goal_surroundings_and_inventory(small):
    world = TextWorldWorld()
    first = await world.reset(small)
    await world.close()
    assert first.observation == small.instruction
    rules, goal, look = small.instruction.split("\n")[:3]
    assert rules.startswith("You play a text adventure.")
    assert goal.startswith("Goal: ")
    assert look.startswith("-= ")
    assert "$$" not in small.instruction


async def test_a_fork_shares_the_description_of_the_game_which_is_slow_to_copy(small):
    world = TextWorldWorld()
    await world.reset(small)
    fork = await world.fork(0)
    await fork.step("look")
    await world.step("look")
    assert fork._state.game is world._state.game
    await fork.close()
    await world.close()


async def test_a_fork_in_a_used_interpreter_continues_as_its_origin_would(larger, monkeypatch):
    loaded, load = [], FrotzEnv.__init__
    monkeypatch.setattr(
        FrotzEnv, "__init__", lambda self, *given, **named: loaded.append(1) or load(self, *given, **named)
    )
    await expert_play(larger)  # Leaves an interpreter whose game is won.
    commands, _ = await expert_play(larger, error_rate=0.3)
    world = TextWorldWorld()
    await world.reset(larger)
    answers = [await world.step(command) for command in commands]
    await world.close()
    await world.reset(larger)
    before = len(loaded)
    for depth, command in enumerate(commands):
        fork = await world.fork(depth)
        assert [await fork.step(later) for later in commands[depth:]] == answers[depth:]
        await fork.close()
        assert await world.step(command) == answers[depth]
    await world.close()
    assert len(loaded) == before


async def test_a_game_goes_on_after_another_story_was_written_to_its_file(small, tmp_path):
    other = next(generate_tasks(1, "test", size=SMALL))
    story = tmp_path / "story.z8"

    async def started(task):
        for ending in (".z8", ".json"):
            shutil.copy(Path(task.payload.story).with_suffix(ending), story.with_suffix(ending))
        world = TextWorldWorld()
        return world, (await world.reset(story_task(story))).observation

    world, before = await started(small)
    later, after = await started(other)
    assert after != before
    await later.close()  # Leaves an interpreter of the other story.
    fork = await world.fork(0)
    assert await fork.step("look") == await world.step("look")
    await fork.close()
    await world.close()


async def test_asking_for_advice_late_in_a_fork_or_at_every_step_makes_no_difference(larger):
    asking, silent, rng = TextWorldWorld(), TextWorldWorld(), np.random.default_rng(1)
    await asking.reset(larger)
    await silent.reset(larger)
    for step in range(20):
        action = asking.random_action(rng)
        answers = await asking.step(action), await silent.step(action)
        assert answers[0] == answers[1]
        if step % 6 == 5:
            fork, twin = await silent.fork(step), await asking.fork(step)
            assert fork.expert_action() == asking.expert_action()
            assert await fork.step("look") == await twin.step("look")
            await fork.close()
            await twin.close()
    assert silent._guide is None
    assert silent.expert_action() == asking.expert_action()
    await asking.close()
    await silent.close()


async def test_observations_have_no_prompt_and_commands_that_leave_are_refused(small):
    world = TextWorldWorld()
    await world.reset(small)
    refused, looked = await world.step("Restart"), await world.step("look")
    await world.close()
    assert refused.observation == "The command restart is not available here."
    assert looked.observation.startswith("-= ")
    assert not looked.observation.endswith(">")


def test_a_game_is_generated_once_and_splits_differ(small):
    story = generated_game(1, SMALL)
    assert str(story) == small.payload.story
    made = story.stat().st_mtime_ns
    assert generated_game(1, SMALL).stat().st_mtime_ns == made
    assert sorted(path.name for path in story.parent.parent.iterdir() if path.name.startswith(".")) == []
    other = next(generate_tasks(1, "test", size=SMALL))
    assert other.instruction != small.instruction
    assert story_task(story).instruction == small.instruction


async def test_what_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="TextWorld cannot play"):
        story_task(tmp_path / "none.z8")
    with pytest.raises(ConfigurationError, match="expected a split of train, test"):
        list(generate_tasks(1, "dev"))
    with pytest.raises(EnvironmentStateError, match="TextWorldTask payload, got NoneType"):
        await TextWorldWorld().reset(Task("other", "do something"))
    with pytest.raises(EnvironmentStateError, match="expert_action was called before reset"):
        TextWorldWorld().expert_action()
