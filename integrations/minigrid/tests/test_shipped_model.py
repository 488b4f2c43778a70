import numpy as np
import pytest

pytest.importorskip("minigrid")

from amc_agents_minigrid import ACTIONS, GO_TO, MODEL, PICK_UP, ExpertLabels
from langchain_core.messages import HumanMessage

from amc_agents import actor_critic_model
from amc_agents.critics.spec import parse_critic
from amc_agents.errors import CriticSpecError
from amc_agents.messages import turn_of
from amc_agents.models.embedded import EmbeddedChatModel, WordTokenizer
from amc_agents.models.seeding import use_rng
from amc_agents.types import Step, Trajectory


async def episode(model, found, task):
    world = found.make()
    answer = await world.reset(task)
    messages, actions = [HumanMessage(answer.observation)], []
    with use_rng(np.random.default_rng(task.payload.seed)):
        while not answer.done:
            reply = await model.ainvoke(messages)
            actions.append(turn_of(reply)[1])
            answer = await world.step(actions[-1])
            messages += [reply, HumanMessage(answer.observation)]
    return answer, actions


@pytest.mark.parametrize("found", [GO_TO, PICK_UP], ids=["go-to", "pick-up"])
async def test_the_shipped_policy_plays_and_solves_some_held_out_tasks_and_not_all(found):
    model = EmbeddedChatModel(model=found.model, temperature=0.7)
    played = [await episode(model, found, task) for task in found.tasks(20, "test", 1000)]
    solved = np.mean([answer.reward > 0 for answer, _ in played])
    # Measured: the README. 20 tasks have a standard error of 0.11.
    assert 0.15 < solved < 0.95
    actions = [action for _, acted in played for action in acted]
    assert np.mean([action in ACTIONS for action in actions]) > 0.99


def test_every_word_of_the_worlds_is_in_the_vocabulary():
    tokenizer = WordTokenizer.from_folder(MODEL)
    unknown = tokenizer.encode("<unk>")[0]
    for found in (GO_TO, PICK_UP):
        for task in found.tasks(20, "test", 0):
            ids = tokenizer.encode(task.instruction)
            assert unknown not in ids
            assert tokenizer.decode(ids) == task.instruction
    assert unknown not in tokenizer.encode("There is no such action.\nActions: " + ", ".join(ACTIONS))


def test_the_model_is_small():
    assert sum(path.stat().st_size for path in MODEL.iterdir()) < 1_000_000


async def test_the_shipped_critic_tells_what_helps_from_what_does_not():
    critic = parse_critic("babyai")
    policy = EmbeddedChatModel(model=GO_TO.model, temperature=0.0)
    told, better = [], []
    for task in GO_TO.tasks(20, "test", 1000):
        _, actions = await episode(policy, GO_TO, task)
        world, steps = GO_TO.make(), []
        await world.reset(task)
        for action in actions[:8]:
            states = [Trajectory(task, (*steps, Step(name))) for name in ACTIONS]
            labels = [ExpertLabels()(state)[-1] for state in states]
            if "GOOD" in labels:
                odds = await critic.log_odds(states)
                told.append(labels[int(np.argmax(odds))] == "GOOD")
                better.append(np.mean([label == "GOOD" for label in labels]))
            steps.append(Step(action, (await world.step(action)).observation))
    # Measured on held-out states: the README. One at random would be right in a third of them.
    assert np.mean(told) > np.mean(better) + 0.15


async def test_the_shipped_critic_leads_the_policy():
    policy = EmbeddedChatModel(model=GO_TO.model, temperature=1.0)
    led = actor_critic_model(policy, "babyai", k=5, alpha=5.0, greedy=True)
    tasks = list(GO_TO.tasks(30, "test", 1000))
    solved = [[(await episode(model, GO_TO, task))[0].reward > 0 for task in tasks] for model in (policy, led)]
    assert np.mean(solved[1]) > np.mean(solved[0])


def test_the_critic_has_one_form():
    with pytest.raises(CriticSpecError, match="no target"):
        parse_critic("babyai:go-to")
