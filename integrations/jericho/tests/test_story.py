"""Without a compiler: a small story file that is kept here, and all that is decided before a game is compiled."""

import shutil

import pytest

pytest.importorskip("jericho", reason="the package jericho is not installed")

from amc_agents_jericho import JERICHO, JerichoWorld, generate_layout, generate_tasks, story_task, story_tasks
from amc_agents_jericho.critic import KeepProgress
from amc_agents_jericho.expert_agent import task_of
from playing import STORY, played

from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Step, Task, Trajectory


async def test_a_story_keeps_the_contract_with_luck():
    await check_environment(JerichoWorld, story_task(STORY), ["roll", "gain", "roll", "roll", "win"], stochastic=True)


async def test_the_score_of_version_3_is_the_second_global_variable():
    answers = await played(story_task(STORY), "gain", "gain", "lose", "nothing", "win")
    assert [answer.reward for answer in answers] == [5.0, 5.0, -7.0, 0.0, 0.0]
    assert answers[0].observation == "You gain."
    assert [answer.terminated for answer in answers] == [False] * 4 + [True]
    shares = [answer.reward for answer in await played(story_task(STORY, max_score=10), "gain", "lose")]
    assert shares == [0.5, -0.7]


async def test_a_fork_shares_the_past_and_draws_its_own_luck():
    world = JerichoWorld()
    await world.reset(story_task(STORY))
    await world.step("gain")
    twins = [await world.fork(seed) for seed in (1, 1, *range(2, 10))]
    futures = [[await twin.step(command) for command in ("roll", "roll", "roll", "gain")] for twin in twins]
    for each in (world, *twins):
        await each.close()
    assert futures[0] == futures[1]
    assert len({tuple(answer.observation for answer in future) for future in futures}) > 3
    assert [[answer.reward for answer in future] for future in futures] == [[0.0, 0.0, 0.0, 5.0]] * len(twins)


@pytest.mark.parametrize("command", ["save", "Restore", " quit", "q", "undo"])
async def test_commands_that_leave_the_episode_are_refused(command):
    refused, played_on = await played(story_task(STORY), command, "gain")
    assert refused.observation.endswith("is not available here.")
    assert (refused.done, played_on.reward) == (False, 5.0)


async def test_stories_come_from_a_file_or_a_folder(monkeypatch, tmp_path):
    story = tmp_path / STORY.name
    shutil.copy(STORY, story)
    (tmp_path / "notes.txt").write_text("no story")
    monkeypatch.setenv("AMC_JERICHO_STORIES", str(tmp_path))
    tasks = list(JERICHO.tasks(2, "test", 0))
    assert [task.id for task in tasks] == [f"jericho/{story.name}/1000000", f"jericho/{story.name}/1000001"]
    monkeypatch.setenv("AMC_JERICHO_STORIES", str(story))
    assert [task.instruction for task in story_tasks(1, "test")] == [tasks[0].instruction]
    first = await JerichoWorld().reset(tasks[0])
    assert first.observation == tasks[0].instruction


def test_what_does_not_exist_is_refused(monkeypatch, tmp_path):
    monkeypatch.delenv("AMC_JERICHO_STORIES", raising=False)
    with pytest.raises(ConfigurationError, match="set AMC_JERICHO_STORIES to"):
        list(story_tasks(1, "test"))
    with pytest.raises(ConfigurationError, match="there is no story file"):
        story_task(tmp_path / "zork.z5")
    (tmp_path / "text.z5").write_text("This is no story." * 9)
    with pytest.raises(ConfigurationError, match="not a Z-machine story"):
        story_task(tmp_path / "text.z5")
    with pytest.raises(ConfigurationError, match="expected a split of train, test"):
        list(generate_tasks(1, "dev"))
    with pytest.raises(ConfigurationError, match="expected the id of a generated game"):
        task_of("jericho-keep/test")


def test_generated_games_without_a_compiler_say_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigurationError, match="install the Debian packages inform6-compiler and inform6-library"):
        next(generate_tasks(1, "test"))


async def test_a_task_of_another_world_is_refused():
    with pytest.raises(EnvironmentStateError, match="GameTask payload, got NoneType"):
        await JerichoWorld().reset(Task("other", "do something"))


def test_maps_are_trees_with_the_vault_at_a_leaf():
    for seed in range(50):
        layout = generate_layout(seed)
        assert len(set(layout.names)) == 8
        assert sum(map(len, layout.exits)) == 2 * 7
        assert len(layout.exits[layout.vault]) == 1
        assert {layout.sword, layout.key} <= set(range(1, 7))


async def test_the_critic_counts_earnings_and_wounds():
    def state(*observations, reward=0.4):
        steps = tuple(Step("attack goblin", text) for text in observations)
        return Trajectory(Task("t", "i"), (Step("take sword", "Taken.", reward=reward), *steps))

    wound = "The goblin dodges, and wounds you."
    values = await KeepProgress().values([state(), state(wound), state(wound, wound), state(reward=-0.2)])
    assert values == pytest.approx([0.4, 0.4 * 2 / 3, 0.4 / 3, 0.0])
