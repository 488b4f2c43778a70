"""Models with a fixed word list refuse text that they cannot read, and read all texts of their own worlds."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from amc_agents.critics.render import DIALOGUE
from amc_agents.critics.spec import parse_critic
from amc_agents.critics.value.local import EmbeddedCritic
from amc_agents.envs.crafting import CraftingWorld, generate_task, plan
from amc_agents.errors import ConfigurationError, CriticError
from amc_agents.models.embedded import WordTokenizer, model_folder
from amc_agents.models.tokenizers import Segment, TemplateTokenizer
from amc_agents.training.value.train_value import EMBEDDED, train_value
from amc_agents.training.verdict.labelling import Judged
from amc_agents.training.verdict.train_verdict import EMBEDDED as VERDICTS
from amc_agents.training.verdict.train_verdict import train_verdict
from amc_agents.types import Step, Task, Trajectory

CRAFTING = model_folder("crafting")
REFUND = Trajectory(
    Task("t", "I would like a refund for order 1234, please."),
    (Step("lookup_order 1234", "Order 1234 was shipped on Monday."),),
    done=True,
)


@pytest.fixture(scope="module")
def words():
    return TemplateTokenizer.of_words(WordTokenizer.from_folder(CRAFTING))


def test_a_phrase_that_begins_in_the_template_is_known():
    # Like the BabyAI policy's vocabulary, which has a token for "Action: turn left" and none for "turn".
    phrases = {"<unk>": 0, "Action: turn left": 1, "You": 2, "see": 3}
    pattern = re.compile("|".join([*sorted(phrases, key=len, reverse=True), r"[^ \n]+"]))

    def tokenize(text):
        return [phrases.get(word, 0) for word in pattern.findall(str(text))]

    tokenizer = TemplateTokenizer(tokenize, tokenize, {0}, 0)
    assert tokenizer.unknown_words([Segment("Action: ", "turn left", "\nYou see", "")]).unknown == 0
    assert tokenizer.unknown_words([Segment("Action: ", "turn back", "\nYou see", "")]).unknown == 1


async def played(task, actions):
    world, steps = CraftingWorld(), []
    await world.reset(task)
    for action in actions:
        moment = await world.step(action)
        steps.append(Step(action, moment.observation, thought="oak gate using 2 clay"))
        if moment.terminated:
            break
    return Trajectory(task, tuple(steps))


@pytest.mark.parametrize("critic", ["embedded:crafting", "verdict:embedded:crafting"])
async def test_text_of_another_world_is_refused(critic):
    with pytest.raises(CriticError, match=r"34% of the words are unknown to it, such as 'I' \(at most 5%\).*amc train"):
        await parse_critic(critic).values([REFUND])
    readable = Trajectory(generate_task(1, "test", optimal_steps=(2, 4)))
    with pytest.raises(CriticError, match="cannot read"):
        await parse_critic(critic).values([readable, REFUND])


def test_state_values_refuse_it_too():
    with pytest.raises(CriticError, match="cannot read") as caught:
        EmbeddedCritic(CRAFTING).state_values([REFUND])
    assert len(str(caught.value)) <= 400


@pytest.mark.parametrize("actions", [None, ["inventory"] * 3, ["get 1 nonsense"], ["Nonsense!"], [""]])
async def test_text_of_the_generated_worlds_is_read_including_typos(words, actions):
    for seed in range(20):
        for split in ("train", "test"):
            task = generate_task(seed, split, optimal_steps=(4, 9))
            episode = await played(task, actions or plan(task.payload.book, task.payload.goal))
            count = words.unknown_words(DIALOGUE.segments(episode))
            assert not count.too_many, count
            mistaken = actions not in (None, ["inventory"] * 3, [""])
            assert (count.unknown > 0) == mistaken


def test_template_words_do_not_count(words):
    segment = Segment("Some words of a template ", "nonsense", " which the model does not know")
    assert words.unknown_words([segment])[:2] == (1, 1)
    assert words.unknown_words(["Got 1 clay", "nonsense clay"])[:2] == (1, 5)
    assert words.unknown_words([Segment("<|user|>", "", "")]).too_many is False


def test_five_percent_are_allowed(words):
    known = " clay" * 95
    assert not words.unknown_words([known, *["unheard"] * 5]).too_many
    assert words.unknown_words([known, *["unheard"] * 6]).too_many
    assert str(words.unknown_words([" clay", "unheard"])).startswith("50% of the words are unknown to it, such as 'unh")


def test_a_value_model_is_not_trained_on_words_that_its_base_does_not_know(tmp_path):
    data = [replace(REFUND, task=replace(REFUND.task, id=str(number))) for number in range(8)]
    with pytest.raises(ConfigurationError, match=r"34% of the words are unknown to it.*--base"):
        train_value(CRAFTING, data, tmp_path / "out", EMBEDDED)
    assert list(tmp_path.iterdir()) == []


def test_a_verdict_model_is_not_trained_on_unknown_words(tmp_path):
    data = [
        Judged(replace(REFUND, task=replace(REFUND.task, id=str(number))), (label,), ())
        for number in range(4)
        for label in ("GOOD", "BAD")
    ]
    with pytest.raises(ConfigurationError, match=r"34% of the words are unknown to it.*--base"):
        train_verdict(CRAFTING, data, tmp_path / "out", VERDICTS)
