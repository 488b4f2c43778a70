import numpy as np
import pytest

pytest.importorskip("textworld", reason="the package textworld is not installed")

from amc_agents_textworld import MODEL, TEXTWORLD, TextWorldWorld, generate_tasks
from langchain_core.messages import AIMessage, HumanMessage

from amc_agents.models.embedded import EmbeddedChatModel, WordTokenizer
from amc_agents.models.seeding import use_rng


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AMC_TEXTWORLD_GAMES", str(tmp_path_factory.mktemp("games")))
        yield list(generate_tasks(10, "test", 900_000))


async def episode(model, task):
    world, messages, answers = TextWorldWorld(), [HumanMessage(task.instruction)], []
    await world.reset(task)
    while len(answers) < TEXTWORLD.horizon and not (answers and answers[-1].done):
        reply = await model.ainvoke(messages)
        answers.append(await world.step(reply.text.split("Action: ")[-1]))
        messages += [AIMessage(reply.text), HumanMessage(answers[-1].observation)]
    await world.close()
    return answers


async def test_the_shipped_policy_earns_some_points_and_does_not_win_every_game(tasks):
    model = EmbeddedChatModel(model=TEXTWORLD.model, temperature=0.7)
    with use_rng(np.random.default_rng(0)):
        played = [await episode(model, task) for task in tasks]
    returns = [sum(answer.reward for answer in answers) for answers in played]
    # Measured on test games: docs/results/worlds/textworld.
    assert sum(returns) > 0
    assert min(returns) < 1
    answers = [answer.observation for each in played for answer in each]
    assert np.mean([answer == "That's not a verb I recognise." for answer in answers]) < 0.1


def test_nearly_every_word_of_a_goal_is_in_the_vocabulary(tasks):
    tokenizer = WordTokenizer.from_folder(MODEL)
    unknown = tokenizer.encode("<unk>")[0]
    goals = [task.instruction.split("\n")[1] for task in tasks]
    assert all(goal.startswith("Goal: ") for goal in goals)
    # All names of things are words of the vocabulary; verbs that a goal uses once in a hundred games are not.
    ids = [identifier for goal in goals for identifier in tokenizer.encode(goal)]
    assert ids.count(unknown) < 0.01 * len(ids)


def test_the_files_are_small():
    assert max(path.stat().st_size for path in MODEL.iterdir()) < 1_000_000
