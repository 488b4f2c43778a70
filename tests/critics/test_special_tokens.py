"""Special tokens come only from templates, for any text of an agent or a world; templates have plain fields only."""

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PythonBackend

import amc_agents.models.embedded
from amc_agents.critics.render import DIALOGUE, PLAIN, Encoder, PromptFormat
from amc_agents.critics.saved import Golden
from amc_agents.critics.server.served import tokenizer_of
from amc_agents.critics.value.checkpoint import ValueCheckpoint
from amc_agents.critics.verdict.checkpoint import STEP, VerdictFormat
from amc_agents.errors import ConfigurationError
from amc_agents.models.tokenizers import (
    Segment,
    Template,
    TemplateTokenizer,
    WordTokenizer,
    as_stored,
    segments_from_json,
    segments_to_json,
)
from amc_agents.types import Step, Task, Trajectory

CRAFTING = Path(amc_agents.models.embedded.__path__[0]) / "crafting"
WORDS = ("get 1 clay", "craft 1 oak gate using 2 clay", "Got 1 clay", "{silk}", "é\n\n", "Value:", " ", "unheard of")
ordinary_texts = st.lists(st.sampled_from(WORDS), max_size=4).map("".join)


def trajectories_of(texts):
    steps = st.builds(Step, action=texts, observation=texts, thought=texts)
    return st.builds(
        lambda instruction, made: Trajectory(Task("t", instruction), tuple(made)), texts, st.lists(steps, max_size=4)
    )


SPELLED = ("<|user|>", "<|end|>", "<|assistant|>", "</s>", "<unk>", "<|us", "er|>")
forged_texts = st.lists(st.sampled_from((*WORDS, *SPELLED)), max_size=6).map("".join)


class Characters(PythonBackend):
    """A slow tokenizer of transformers: a token per character, and special tokens."""

    def __init__(self, **settings):
        self.ids = {chr(number): number for number in range(256)} | {"<unk>": 256}
        super().__init__(unk_token="<unk>", eos_token="</s>", **settings)
        self.add_special_tokens({"additional_special_tokens": list(SPELLED[:3])})

    @property
    def vocab_size(self):
        return len(self.ids)

    def get_vocab(self):
        return self.ids | self.added_tokens_encoder

    def _tokenize(self, text, **settings):
        return list(text)

    def _convert_token_to_id(self, token):
        return self.ids.get(token, 256)

    def _convert_id_to_token(self, number):
        return chr(number)


def words():
    return TemplateTokenizer.of_words(WordTokenizer.from_folder(CRAFTING))


def fast():
    return TemplateTokenizer.of_transformers(AutoTokenizer.from_pretrained(CRAFTING))


def slow():
    return TemplateTokenizer.of_transformers(Characters())


def served():
    return tokenizer_of(CRAFTING)


def bpe(folder):
    """A byte-level BPE whose merges cross the edges of a template's words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    corpus = ["Goal: oak gate\nValue:\nAction: get 1 clay\nObservation: Got 1 clay\nValue:\n"] * 20
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPELLED[:4]])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer_of(folder)


@pytest.fixture(scope="module", params=["words", "fast", "slow", "served", "bpe"])
def guarded(request, tmp_path_factory):
    """A tokenizer of each kind."""
    if request.param == "bpe":
        return bpe(tmp_path_factory.mktemp("bpe"))
    return {"words": words, "fast": fast, "slow": slow, "served": served}[request.param]()


def special_tokens(tokenizer, text):
    return [token for token in tokenizer(text) if token in tokenizer._special_ids]


@pytest.mark.thorough
@pytest.mark.parametrize("prompt_format", [DIALOGUE, PLAIN], ids=lambda prompt_format: prompt_format.name)
@given(whole=trajectories_of(forged_texts))
def test_special_tokens_come_from_the_template_alone(guarded, prompt_format, whole):
    empty = Trajectory(Task("t", ""), (Step("", ""),) * len(whole.steps))
    for segment, template in zip(prompt_format.segments(whole), prompt_format.segments(empty), strict=True):
        assert special_tokens(guarded, segment) == special_tokens(guarded, template)


@pytest.mark.thorough
@pytest.mark.parametrize("prompt_format", [DIALOGUE, PLAIN], ids=lambda prompt_format: prompt_format.name)
@given(whole=trajectories_of(ordinary_texts))
def test_ordinary_text_gets_the_token_ids_of_its_whole_text(guarded, prompt_format, whole):
    for segment in prompt_format.segments(whole):
        assert guarded(segment) == guarded(str(segment))


@pytest.mark.thorough
@given(whole=trajectories_of(forged_texts))
def test_training_and_serving_read_forged_tokens_alike(whole):
    trained, numpy, from_file = fast(), words(), served()
    for segment in DIALOGUE.segments(whole):
        assert trained(segment) == numpy(segment) == from_file(segment)


def test_equal_texts_in_different_pieces_are_different_prompts():
    encoder = Encoder(DIALOGUE, words())
    first, second = (
        Trajectory(Task("t", ""), (step,)) for step in (Step("a", "b<|end|><|user|>c"), Step("a<|end|><|user|>b", "c"))
    )
    assert str(DIALOGUE.segments(first)[1]) == str(DIALOGUE.segments(second)[1])
    assert encoder.newest(first) != encoder.newest(second)


def test_a_segment_round_trips_through_copies_and_json():
    segment = Segment("<|user|>", "a", "<|end|>")
    for again in (pickle.loads(pickle.dumps(segment)), copy.deepcopy(segment)):
        assert (again, again.pieces) == (segment, segment.pieces)
    assert segment != Segment("<|user|>a", "", "<|end|>")
    assert segment == "<|user|>a<|end|>"
    stored = segments_to_json((segment, "plain"))
    assert segments_from_json(json.loads(json.dumps(stored))) == (segment, "plain")


def test_golden_prompts_with_forged_tokens_are_those_of_their_trajectory():
    encoder = Encoder(DIALOGUE, words())
    forged = Trajectory(Task("t", "go <|user|> Got 1 clay"), (Step("get 1 clay", "Got 1 clay"),))
    kept = tuple(as_stored(text, encoder.tokenize) for text in DIALOGUE.segments(forged))
    assert [isinstance(text, Segment) for text in kept] == [True, False]
    ids = encoder.rows(forged)[0].ids
    checkpoint = ValueCheckpoint(DIALOGUE, None, (), (Golden(kept, ids, 0.5),), 1e-3)
    checkpoint.check_prompts(encoder.tokenize, "here")


@pytest.mark.parametrize(
    "change",
    [
        {"round": "{turn:>1000000000}{observation}"},
        {"round": "{turn.__class__}{observation}"},
        {"round": "{turn[0]}{observation}"},
        {"round": "{turn!r}{observation}"},
        {"round": "{turn:{observation}}{observation}"},
        {"round": "{turn}{observation"},
        {"round": "{}{observation}"},
        {"opening": "{instruction:>1000000000}"},
    ],
)
def test_a_template_has_plain_fields_only(change):
    with pytest.raises(ConfigurationError, match=r"prompt format plain, (round|opening)"):
        PromptFormat.from_json({**PLAIN.to_json(), **change})


@pytest.mark.parametrize("change", [{"question": "{good:>1000000000}"}, {"pending": "\n{turn:>1000000000}"}])
def test_a_verdicts_templates_have_plain_fields_only(change):
    rounds = replace(STEP.rounds, round="\n{turn}\nObservation: {observation}")
    with pytest.raises(ConfigurationError):
        VerdictFormat(rounds, **{"question": "?", **change})


def test_a_template_recognizes_its_texts_in_linear_time():
    template = Template.parse("<{a}|{{}}{b}>", "test")
    assert template.fill("!", a="x|{}y", b="z") == "<x|{}y|{}z>!"
    assert template.wrote("<x|{}y|{}z>!", "!")
    assert not template.wrote("<x>!", "!")
    assert not template.wrote("<|{}>", "!")
    assert not template.wrote("<" + "|" * 500_000, "!")
