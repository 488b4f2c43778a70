import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("alfworld", reason="the package alfworld is not installed")

from amc_agents_alfworld import (
    TASK_TYPES,
    AlfworldTask,
    AlfworldWorld,
    generate_room,
    generate_tasks,
    official_tasks,
    problem,
)

from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Task

FIRST = {task.payload.task_type: task for task in generate_tasks(6, "train")}


async def expert_play(task, error_rate=0.0):
    world, rng = AlfworldWorld(), np.random.default_rng(1)
    await world.reset(task)
    actions, answers = [], []
    while not (answers and answers[-1].done) and len(actions) < 60:
        wrong = rng.random() < error_rate
        actions.append(world.random_action(rng) if wrong else world.expert_action())
        answers.append(await world.step(actions[-1]))
    await world.close()
    return actions, answers


@pytest.mark.parametrize("task_type", TASK_TYPES)
async def test_the_planner_reaches_the_goal_of_every_task_type(task_type):
    actions, answers = await expert_play(FIRST[task_type])
    assert answers[-1].terminated
    assert [answer.reward for answer in answers] == [0.0] * (len(actions) - 1) + [1.0]
    verbs = {action.split()[0] for action in actions}
    special = {"clean", "heat", "cool", "use"} & verbs
    needed = {"look_at_obj_in_light": {"use"}} | {f"pick_{verb}_then_place_in_recep": {verb} for verb in special}
    assert special == needed.get(task_type, set())


async def test_the_expert_recovers_from_errors():
    _, answers = await expert_play(FIRST["pick_two_obj_and_place"], error_rate=0.3)
    assert answers[-1].reward == 1.0


async def test_the_contract_of_an_environment_is_kept():
    actions, _ = await expert_play(FIRST["pick_and_place_simple"])
    await check_environment(AlfworldWorld, FIRST["pick_and_place_simple"], actions)


async def test_the_instruction_is_the_first_observation_with_the_goal():
    task = FIRST["pick_heat_then_place_in_recep"]
    world = AlfworldWorld()
    first = await world.reset(task)
    refused = await world.step("fly to the moon")
    await world.close()
    assert first.observation == task.instruction
    assert task.instruction.startswith("You are in the middle of a room. Looking quickly around you, you see a ")
    room = generate_room("pick_heat_then_place_in_recep", 3)
    assert task.instruction.endswith(f"Your task is to: {room.description}.")
    assert refused.observation == "Nothing happens."


def test_every_generated_room_can_be_solved_by_its_contents():
    for task_type in TASK_TYPES:
        for seed in range(40):
            room = generate_room(task_type, seed)
            kinds = [kind for kind, _ in room.objects]
            assert kinds.count(room.target) == (2 if task_type == "pick_two_obj_and_place" else 1)
            homes = [room.receptacles[home] for kind, home in room.objects if kind == room.target]
            assert room.goal_receptacle not in homes
            assert (room.goal_receptacle in room.receptacles) == (task_type != "look_at_obj_in_light")
            assert ("DeskLamp" in kinds) == (task_type == "look_at_obj_in_light")
            assert "#" not in problem(room)


def test_tasks_are_the_same_in_every_process_and_splits_differ():
    command = "from amc_agents_alfworld import generate_tasks; print(next(generate_tasks(1, 'test', 4)).instruction)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "5"}
    done = subprocess.run(
        [sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    task = next(generate_tasks(1, "test", 4))
    assert done.stdout.strip() == task.instruction
    assert task.instruction != FIRST["pick_cool_then_place_in_recep"].instruction


def test_the_real_games_are_read_from_their_folders(tmp_path, monkeypatch):
    for number, task_type in enumerate(("pick_and_place_simple", "look_at_obj_in_light")):
        folder = tmp_path / "json_2.1.1" / "valid_unseen" / f"{task_type}-Any-None-Any-{number}" / f"trial_{9 - number}"
        folder.mkdir(parents=True)
        game = {**FIRST[task_type].payload.game, "solvable": True}
        (folder / "game.tw-pddl").write_text(json.dumps(game))
    unsolvable = tmp_path / "json_2.1.1" / "valid_unseen" / "pick_and_place_simple-Any-None-Any-8" / "trial_1"
    unsolvable.mkdir(parents=True)
    (unsolvable / "game.tw-pddl").write_text(json.dumps({**game, "solvable": False}))
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    tasks = list(official_tasks(5, "test"))
    assert [task.payload.task_type for task in tasks] == ["look_at_obj_in_light", "pick_and_place_simple"]
    assert tasks[0].instruction == FIRST["look_at_obj_in_light"].instruction
    with pytest.raises(ConfigurationError, match="run alfworld-download"):
        official_tasks(1, "train")


async def test_what_does_not_exist_is_refused():
    with pytest.raises(ConfigurationError, match="expected a split of train, test and task types"):
        generate_tasks(1, "dev")
    with pytest.raises(ConfigurationError, match="got 'train' and juggle"):
        generate_tasks(1, "train", task_types=["juggle"])
    with pytest.raises(EnvironmentStateError, match="AlfworldTask payload, got NoneType"):
        await AlfworldWorld().reset(Task("other", "do something"))
    broken = AlfworldTask({"pddl_domain": "(", "grammar": "", "pddl_problem": "("}, "pick_and_place_simple")
    with pytest.raises(ConfigurationError, match="engine cannot read this game"):
        await AlfworldWorld().reset(Task("broken", "do something", broken))
