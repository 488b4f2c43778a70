import subprocess
from pathlib import Path

import pytest

pytest.importorskip("jericho", reason="the package jericho is not installed")
from playing import NO_INFORM, STORY, played

if NO_INFORM:
    pytest.skip(NO_INFORM, allow_module_level=True)

from amc_agents_jericho import JerichoWorld, story_task
from amc_agents_jericho.keep.compile import LIBRARY

from amc_agents.testing import check_environment

HERE = Path(__file__).parent


def compiled(source, version, folder):
    story = folder / f"{source.stem}.z{version}"
    command = ["inform6", f"-v{version}", "-s", f"+include_path={LIBRARY}", str(source), str(story)]
    subprocess.run(command, check=True, capture_output=True)
    return story


@pytest.fixture(scope="module", params=[5, 8])
def rooms(request, tmp_path_factory):
    return compiled(HERE / "rooms.inf", request.param, tmp_path_factory.mktemp("rooms"))


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


async def test_the_story_that_is_kept_is_compiled_from_its_source(tmp_path):
    commands = ["gain", "lose", "roll", "nothing", "win"]
    tasks = [story_task(story, seed=4) for story in (STORY, compiled(STORY.with_suffix(".inf"), 3, tmp_path))]
    kept, new = [await played(task, *commands) for task in tasks]
    assert kept == new
