import numpy as np
import pytest

pytest.importorskip("alfworld", reason="the package alfworld is not installed")

from amc_agents_alfworld import ALFWORLD, MODEL, AlfworldWorld, generate_tasks
from langchain_core.messages import AIMessage, HumanMessage

from amc_agents.critics import parse_critic
from amc_agents.models.embedded import EmbeddedChatModel, WordTokenizer
from amc_agents.models.seeding import use_rng
from amc_agents.types import Step, Trajectory

TASKS = list(generate_tasks(12, "test", 900_000))


async def episode(model, task):
    world, messages, steps = AlfworldWorld(), [HumanMessage(task.instruction)], []
    answer = await world.reset(task)
    while not answer.done and len(steps) < ALFWORLD.horizon:
        reply = await model.ainvoke(messages)
        action = reply.text.split("Action: ")[-1]
        answer = await world.step(action)
        steps.append(Step(action, answer.observation, reward=answer.reward))
        messages += [AIMessage(reply.text), HumanMessage(answer.observation)]
    await world.close()
    return Trajectory(task, tuple(steps))


async def test_the_shipped_policy_plays_and_solves_some_rooms_and_not_all():
    model = EmbeddedChatModel(model=ALFWORLD.model, temperature=0.7)
    with use_rng(np.random.default_rng(0)):
        played = [await episode(model, task) for task in TASKS]
    solved = np.mean([trajectory.return_ for trajectory in played])
    # Measured on 102 test rooms: docs/results/worlds/alfworld. 12 rooms have a standard error of 0.14.
    assert 0.0 < solved < 0.9
    answers = [step.observation for trajectory in played for step in trajectory.steps]
    assert np.mean([answer == "Nothing happens." for answer in answers]) < 0.3


async def test_the_shipped_value_model_prefers_a_reached_goal_to_a_search_without_result():
    task = next(task for task in TASKS if task.payload.task_type == "pick_and_place_simple")
    world, reached, thought = AlfworldWorld(), [], "find plate"
    answer = await world.reset(task)
    while not answer.done:
        action = world.expert_action()
        answer = await world.step(action)
        reached.append(Step(action, answer.observation, thought))
    await world.close()
    searched = [Step("look", "Nothing happens.", thought)] * ALFWORLD.horizon
    values = await parse_critic(f"embedded:{MODEL}").values([Trajectory(task, tuple(s)) for s in (reached, searched)])
    assert 0 <= values[1] < values[0] <= 1


def test_every_word_of_the_rooms_is_in_the_vocabulary():
    tokenizer = WordTokenizer.from_folder(MODEL)
    unknown = tokenizer.encode("<unk>")[0]
    for task in TASKS:
        ids = tokenizer.encode(task.instruction)
        assert unknown not in ids
        assert tokenizer.decode(ids) == task.instruction


def test_the_models_are_small():
    assert sum(path.stat().st_size for path in MODEL.rglob("*")) < 2_000_000
