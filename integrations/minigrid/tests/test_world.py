import copy
import itertools

import pytest

pytest.importorskip("minigrid")

from amc_agents_minigrid import (
    ACTIONS,
    GO_TO,
    GO_TO_LOCAL,
    PICK_UP,
    PICKUP_LOCAL,
    BabyAIWorld,
    Expert,
    generate_task,
    generate_tasks,
)
from minigrid.core.world_object import Ball, Box

from amc_agents.envs.registry import world, worlds
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.testing import check_environment
from amc_agents.types import Task


async def started(task=None, **settings):
    made = BabyAIWorld(**settings)
    return made, await made.reset(task or generate_task(GO_TO_LOCAL, 0))


async def expert_play(task, error_rate=0.0, rng=None, **settings):
    made, answer = await started(task, **settings)
    expert = Expert(made.level, error_rate, rng)
    actions = []
    while not answer.done:
        actions.append(expert.turn().action)
        answer = await made.step(actions[-1])
    return actions, answer


@pytest.mark.parametrize("level", [GO_TO_LOCAL, PICKUP_LOCAL, "BabyAI-PutNextLocal-v0"])
async def test_the_contract_of_an_environment_is_kept(level):
    task = generate_task(level, 3)
    actions, answer = await expert_play(task)
    assert answer.terminated
    await check_environment(BabyAIWorld, task, actions)


async def test_an_episode_that_runs_out_of_steps_keeps_the_contract_too():
    task = generate_task(GO_TO_LOCAL, 3, horizon=12)
    await check_environment(BabyAIWorld, task, ["turn left", "drop"] * 6)


async def test_the_instruction_is_actions_goal_and_view():
    task = generate_task(PICKUP_LOCAL, 5)
    _, first = await started(task)
    actions, goal, view = task.instruction.split("\n")
    assert first.observation == task.instruction
    assert actions == "Actions: turn left, turn right, go forward, pick up, drop, toggle"
    assert goal.startswith("Goal: pick up ")
    assert view.startswith("You see a ")


async def test_turning_and_going_move_the_view():
    made, _ = await started()
    level = made.level
    for cell in itertools.product(range(1, 7), repeat=2):
        level.grid.set(*cell, None)
    level.agent_pos, level.agent_dir = (3, 3), 0
    assert (await made.step("go forward")).observation == "You see a wall 3 steps left, You see a wall 3 steps forward"
    assert (await made.step("turn left")).observation == "You see a wall 3 steps right, You see a wall 3 steps forward"
    assert (await made.step("turn right")).observation == "You see a wall 3 steps left, You see a wall 3 steps forward"
    assert tuple(level.agent_pos) == (4, 3)


async def test_picking_up_carrying_and_dropping():
    made, _ = await started(generate_task(PICKUP_LOCAL, 0))
    level = made.level
    level.agent_pos, level.agent_dir = (3, 3), 0
    level.grid.set(4, 3, Ball("red"))
    held = await made.step("pick up")
    assert held.observation.startswith("You carry a red ball, ")
    again = await made.step("pick up")
    assert again.observation == held.observation
    put = await made.step("drop")
    assert "You carry" not in put.observation
    assert "You see a red ball 1 step forward" in put.observation


async def test_toggling_a_box_opens_it():
    made, _ = await started()
    made.level.agent_pos, made.level.agent_dir = (3, 3), 0
    made.level.grid.set(4, 3, Box("blue"))
    assert "You see a blue box 1 step forward" not in (await made.step("toggle")).observation


async def test_a_wrong_action_costs_a_step_changes_nothing_and_is_answered_with_the_list():
    made, first = await started()
    answer = await made.step("fly to the moon")
    refusal, listed, view = answer.observation.split("\n")
    assert refusal == "There is no such action."
    assert listed == "Actions: turn left, turn right, go forward, pick up, drop, toggle"
    assert view == first.observation.split("\n")[-1]
    assert made.level.step_count == 1


@pytest.mark.parametrize("said", ["Turn  Left", " turn left. ", "TURN LEFT"])
async def test_case_spaces_and_a_full_stop_do_not_matter(said):
    one, _ = await started()
    other, _ = await started()
    assert await one.step(said) == await other.step("turn left")


@pytest.mark.parametrize("number", range(3))
async def test_success_pays_less_the_later_it_comes_or_one(number):
    task = generate_task(GO_TO_LOCAL, number)
    actions, timed = await expert_play(task)
    assert timed.reward == pytest.approx(1 - 0.9 * len(actions) / 30)
    _, plain = await expert_play(task, timed=False)
    assert plain.reward == 1.0


async def test_success_in_the_last_step_is_success():
    task = generate_task(GO_TO_LOCAL, 3)
    actions, _ = await expert_play(task)
    short = generate_task(GO_TO_LOCAL, 3, horizon=len(actions))
    _, answer = await expert_play(short)
    assert (answer.terminated, answer.truncated) == (True, False)
    assert answer.reward == pytest.approx(0.1)
    too_short = generate_task(GO_TO_LOCAL, 3, horizon=len(actions) - 1)
    _, answer = await expert_play(too_short)
    assert (answer.truncated, answer.reward) == (True, 0.0)


async def test_a_fork_shares_nothing_that_changes():
    made, _ = await started(generate_task(PICKUP_LOCAL, 1))
    twin = await made.fork(7)
    made.level.grid.set(3, 3, Ball("red"))
    assert twin.level.grid.get(3, 3) is not made.level.grid.get(3, 3)
    assert twin.level.instrs.env is twin.level
    assert all(thing not in made.level.grid.grid for thing in twin.level.instrs.desc.obj_set)


async def test_a_fork_is_what_a_whole_copy_would_be():
    task = generate_task(PICKUP_LOCAL, 2)
    made, _ = await started(task)
    await made.step("turn left")
    twin, whole = await made.fork(1), copy.deepcopy(made)
    for action in [*ACTIONS] * 4:
        assert await twin.step(action) == await whole.step(action)


async def test_a_task_of_another_world_is_refused():
    with pytest.raises(EnvironmentStateError, match="expected a Task with a BabyAITask payload, got NoneType"):
        await BabyAIWorld().reset(Task("other", "do something"))


def test_an_unknown_level_or_split_is_refused():
    with pytest.raises(ConfigurationError, match="expected the name of a MiniGrid level"):
        generate_task("BabyAI-FlyToTheMoon-v0", 0)
    with pytest.raises(ConfigurationError, match="expected the name of a MiniGrid level"):
        generate_task("CartPole-v1", 0)
    with pytest.raises(ConfigurationError, match="expected a split of policy, train, test"):
        generate_task(GO_TO_LOCAL, 0, "validation")
    with pytest.raises(ConfigurationError, match="horizon of 30, got 31 to 40"):
        generate_tasks(GO_TO_LOCAL, 1, expert_steps=(31, 40))
    with pytest.raises(ConfigurationError, match="a number from 0"):
        generate_task(GO_TO_LOCAL, 100_000_000)


def test_making_a_level_prints_nothing(capsys):
    for number in range(30):  # Some of these rooms are drawn more than once.
        generate_task(GO_TO_LOCAL, number)
    assert capsys.readouterr().out == ""


def test_splits_share_no_seed_and_no_first_view():
    tasks = {split: [generate_task(GO_TO_LOCAL, number, split) for number in range(40)] for split in ("train", "test")}
    seeds = {split: {task.payload.seed for task in of} for split, of in tasks.items()}
    views = {split: {task.instruction for task in of} for split, of in tasks.items()}
    assert not seeds["train"] & seeds["test"]
    assert not views["train"] & views["test"]
    assert len(views["train"]) == 40


def test_tasks_of_a_band_need_as_many_steps_as_they_say():
    tasks = list(generate_tasks(PICKUP_LOCAL, 5, "train", expert_steps=(7, 9)))
    assert [7 <= task.payload.expert_steps <= 9 for task in tasks] == [True] * 5
    assert len({task.id for task in tasks}) == 5


@pytest.mark.parametrize(("name", "offered"), [("babyai-go-to", GO_TO), ("babyai-pick-up", PICK_UP)])
async def test_the_offered_worlds_can_be_played(name, offered):
    tasks = list(offered.tasks(2, "test", 0))
    assert len({task.id for task in tasks}) == 2
    assert (await offered.make().reset(tasks[0])).observation == tasks[0].instruction
    if name in worlds():  # Where this package is installed, not only on the path.
        assert world(name) is offered
