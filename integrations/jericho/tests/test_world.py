import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="the package jericho is not installed")
if shutil.which("inform6") is None:
    pytest.skip("the games are compiled by Debian's inform6-compiler, which is not installed", allow_module_level=True)

from amc_agents_jericho import JERICHO, JerichoWorld, generate_tasks, story_task, story_tasks
from amc_agents_jericho.keep.compile import LIBRARY

from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Task

HERE = Path(__file__).parent


def compiled(source, version, folder):
    story = folder / f"{source.stem}.z{version}"
    command = ["inform6", f"-v{version}", "-s", f"+include_path={LIBRARY}", str(source), str(story)]
    subprocess.run(command, check=True, capture_output=True)
    return story


@pytest.fixture(scope="module", params=[5, 8])
def rooms(request, tmp_path_factory):
    return compiled(HERE / "rooms.inf", request.param, tmp_path_factory.mktemp("rooms"))


async def played(task, *actions):
    world = JerichoWorld()
    await world.reset(task)
    answers = [await world.step(action) for action in actions]
    await world.close()
    return answers


async def test_a_story_of_the_user_keeps_the_contract_with_luck(rooms):
    actions = ["take die", "drop die", "take die", "north", "take coin", "dance"]
    await check_environment(JerichoWorld, story_task(rooms), actions, stochastic=True)


async def test_a_story_without_luck_keeps_the_contract_too(rooms):
    await check_environment(JerichoWorld, story_task(rooms), ["north", "take coin", "south", "dance"])


async def test_the_score_of_a_game_that_jericho_does_not_know(rooms):
    answers = await played(story_task(rooms, max_score=7), "north", "take coin", "take coin", "dance")
    assert [answer.reward for answer in answers] == [0.0, pytest.approx(5 / 7), 0.0, pytest.approx(2 / 7)]
    assert answers[-1].terminated
    points = [answer.reward for answer in await played(story_task(rooms), "n", "take coin")]
    assert points == [0.0, 5.0]


async def test_the_score_of_version_3_is_the_second_global_variable(tmp_path):
    story = compiled(HERE / "version3.inf", 3, tmp_path)
    answers = await played(story_task(story), "gain", "gain", "lose", "nothing", "win")
    assert [answer.reward for answer in answers] == [5.0, 5.0, -7.0, 0.0, 0.0]
    assert answers[0].observation == "You gain."
    assert answers[-1].terminated
    await check_environment(JerichoWorld, story_task(story), ["roll", "gain", "roll", "roll", "win"], stochastic=True)


async def test_a_lost_game_ends_with_its_score(rooms):
    answer = (await played(story_task(rooms), "south"))[0]
    assert "You have died" in answer.observation
    assert (answer.terminated, answer.reward) == (True, -2.0)


async def test_observations_have_neither_prompt_nor_status_line(rooms):
    first = (await played(story_task(rooms), "look"))[0]
    assert first.observation == "Hall\nA bare hall.\n\nYou can see a die here."


@pytest.mark.parametrize("command", ["save", "Restore", " quit", "RESTART", "q", "undo", "script on"])
async def test_commands_that_leave_the_episode_are_refused(rooms, command):
    refused, looked = await played(story_task(rooms), command, "look")
    assert refused.observation.endswith("is not available here.")
    assert not refused.done
    assert looked.observation.startswith("Hall")


async def test_a_command_that_only_begins_like_a_refused_one_is_executed(rooms):
    answer = (await played(story_task(rooms), "quaff die"))[0]
    assert "not available" not in answer.observation


async def test_seeds_decide_the_luck_of_an_episode(rooms):
    rolls = {seed: (await played(story_task(rooms, seed), "take die"))[0].observation for seed in range(12)}
    assert rolls[3] == (await played(story_task(rooms, 3), "take die"))[0].observation
    assert len(set(rolls.values())) > 3  # of six; at most three values have a probability below 0.02


async def test_the_worlds_of_a_process_do_not_disturb_each_other(rooms):
    one, other = JerichoWorld(), JerichoWorld()
    task = story_task(rooms)
    await one.reset(task)
    await other.reset(task)
    await one.step("north")
    assert (await other.step("look")).observation.startswith("Hall")
    await one.close()
    assert (await other.step("north")).observation.startswith("Cave")
    await other.close()


async def test_stories_come_from_a_file_or_a_folder(rooms, monkeypatch):
    monkeypatch.setenv("AMC_JERICHO_STORIES", str(rooms.parent))
    tasks = list(JERICHO.tasks(2, "test", 0))
    assert [task.id for task in tasks] == [f"jericho/{rooms.name}/1000000", f"jericho/{rooms.name}/1000001"]
    monkeypatch.setenv("AMC_JERICHO_STORIES", str(rooms))
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


async def test_a_task_of_another_world_is_refused():
    with pytest.raises(EnvironmentStateError, match="GameTask payload, got NoneType"):
        await JerichoWorld().reset(Task("other", "do something"))
