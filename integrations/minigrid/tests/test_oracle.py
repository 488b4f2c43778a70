import numpy as np
import pytest

pytest.importorskip("minigrid")

from amc_agents_minigrid import ACTIONS, GO_TO, PICK_UP, Expert, ExpertCritic, ExpertLabels, steps_left

from amc_agents.errors import ConfigurationError
from amc_agents.types import Step, Task, Trajectory


async def played(found, task, actions=(), error_rate=0.0):
    """These actions first, then the expert's."""
    world = found.make()
    await world.reset(task)
    expert, trajectory = Expert(world.level, error_rate, np.random.default_rng(0)), Trajectory(task)
    ahead = list(actions)
    while not trajectory.done:
        action = ahead.pop(0) if ahead else expert.turn().action
        answer = await world.step(action)
        trajectory = trajectory.extended(Step(action, answer.observation, "", answer.reward), done=answer.done)
    return trajectory


@pytest.mark.parametrize("found", [GO_TO, PICK_UP])
async def test_the_experts_own_steps_are_mostly_good(found):
    tasks = list(found.tasks(10, "train", 0))
    labels = [ExpertLabels()(await played(found, task)) for task in tasks]
    # It does not see the whole room: now and then it looks around.
    assert np.mean([label == "GOOD" for labels in labels for label in labels]) > 0.8
    assert all(labels[-1] == "GOOD" for labels in labels)
    assert [len(one) for one in labels] == [task.payload.expert_steps for task in tasks]


@pytest.mark.parametrize("found", [GO_TO, PICK_UP])
async def test_from_every_state_one_action_leaves_one_step_less(found):
    for number, task in enumerate(found.tasks(15, "train", 40)):
        world, rng = found.make(), np.random.default_rng(number)
        await world.reset(task)
        # Some blind steps first, so that things are carried and put down elsewhere.
        for action in rng.choice(list(ACTIONS), 12, p=[0.15, 0.15, 0.3, 0.3, 0.1, 0.0]):
            if not (await world.step(action)).done:
                continue
            break
        else:
            ended, left = False, steps_left(world.level)
            while not ended:
                tried = {}
                for action in ACTIONS:
                    twin = await world.fork(0)
                    answer = await twin.step(action)
                    tried[action] = 0 if answer.terminated and answer.reward > 0 else steps_left(twin.level)
                best = min(tried, key=tried.get)
                # Taking an obstacle away can save more.
                assert tried[best] <= left - 1, (task.id, left, tried)
                answer = await world.step(best)
                left, ended = tried[best], answer.done or world.level.step_count > 28
            assert left == 0 or world.level.step_count > 28


@pytest.mark.parametrize("found", [GO_TO, PICK_UP])
async def test_a_step_that_is_taken_back_costs_two(found):
    (task,) = found.tasks(1, "train", 3)
    straight = await played(found, task)
    detour = await played(found, task, ["toggle", "toggle"])
    labels = ExpertLabels()(detour)
    assert labels[:2] == ["BAD", "BAD"]
    assert labels[2:] == ExpertLabels()(straight)
    first, second = await ExpertCritic().log_odds([straight, detour])
    assert second == first - 10.0


async def test_candidates_are_told_apart_before_they_are_done():
    (task,) = PICK_UP.tasks(1, "train", 5)
    way = await played(PICK_UP, task)
    state = way.prefix(2)
    good, bad = state.extended(Step(way.steps[2].action)), state.extended(Step("fly away"))
    assert ExpertLabels()(good)[-1] == "GOOD"
    assert ExpertLabels()(bad)[-1] == "BAD"
    assert np.argmax(await ExpertCritic().log_odds([bad, good])) == 1
    assert (await ExpertCritic().values([bad, good]) <= 1.0).all()


async def test_a_dataset_keeps_no_payload_and_the_labels_are_the_same():
    (task,) = GO_TO.tasks(1, "train", 7)
    way = await played(GO_TO, task, ["turn left", "go forward"])
    read = Trajectory(Task(task.id, task.instruction), way.steps, way.done)
    assert ExpertLabels()(read) == ExpertLabels()(way)
    with pytest.raises(ConfigurationError, match="expected a task's id"):
        ExpertLabels()(Trajectory(Task("crafting/train/7/x", "make a door"), way.steps))


async def test_counting_leaves_the_level_as_it_was():
    (task,) = GO_TO.tasks(1, "train", 9)
    world = GO_TO.make()
    await world.reset(task)
    before = world.level.agent_pos, world.level.agent_dir, world.level.step_count
    assert 0 < steps_left(world.level) <= task.payload.expert_steps
    assert (world.level.agent_pos, world.level.agent_dir, world.level.step_count) == before
