from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import amc_agents.models.embedded
from amc_agents.critics.render import DIALOGUE, PLAIN, Encoder, PromptFormat, newest_start, windows
from amc_agents.critics.verdict.checkpoint import DIALOGUE_ACTIONS
from amc_agents.errors import CheckpointError, ConfigurationError, CriticError, PromptTooLong
from amc_agents.models.tokenizers import WordTokenizer
from amc_agents.types import Step, Task, Trajectory

WORDS = ["get 1 clay", "craft 1 oak gate using 2 clay", "Got 1 clay", "Could not find {silk}", "é\n\n", "Value:", " "]


def byte_level_bpe():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Its merges may cross the edge of the marker: it learns tokens such as ":\nAction".
    corpus = ["Goal: oak gate\nValue:\nAction: get 1 clay\nObservation: Got 1 clay\nValue:\n"] * 20
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(scope="module", params=["embedded", "byte-level BPE"])
def tokenize(request):
    if request.param == "embedded":
        return WordTokenizer.from_folder(Path(amc_agents.models.embedded.__path__[0]) / "crafting").encode
    return byte_level_bpe()


def test_tokenizing_a_prompt_at_once_would_not_be_append_only():
    # This tokenizer violates the property below when a prompt is tokenized at once.
    tokenize = byte_level_bpe()
    opening, step = PLAIN.segments(Trajectory(Task("t", "Goal: oak gate"), (Step("get 1 clay", "Got 1 clay"),)))
    assert tokenize(opening + step)[: len(tokenize(opening))] != tokenize(opening)


texts = st.sampled_from(WORDS) | st.text(max_size=12)
steps = st.builds(Step, action=texts, observation=texts, thought=texts)
trajectories = st.builds(
    lambda instruction, made: Trajectory(Task("t", instruction), tuple(made)), texts, st.lists(steps, max_size=6)
)


@pytest.mark.thorough
@pytest.mark.parametrize("prompt_format", [DIALOGUE, PLAIN], ids=lambda prompt_format: prompt_format.name)
@given(whole=trajectories)
def test_token_ids_of_a_state_are_a_prefix_of_those_of_the_next(tokenize, prompt_format, whole):
    encoder = Encoder(prompt_format, tokenize)
    before: tuple[int, ...] = ()
    for t in range(len(whole.steps) + 1):
        ids = tuple(token for segment in encoder.newest(whole.prefix(t)) for token in segment)
        assert ids[: len(before)] == before
        assert len(ids) > len(before)
        before = ids


@pytest.mark.thorough
@given(whole=trajectories, limit=st.integers(20, 60))
def test_serving_reads_exactly_the_tokens_that_training_scored(tokenize, whole, limit):
    # The limit allows the longest pair of segments, but is small compared to the whole prompt.
    encoder = Encoder(PLAIN, tokenize)
    lengths = [len(segment) for segment in encoder.segments(whole)]
    encoder = Encoder(PLAIN, tokenize, max_tokens=lengths[0] + max(lengths[1:], default=0) + limit, prefix_ids=(7,))
    seen = {}
    for row in encoder.rows(whole):
        for mark, state in zip(row.marks, row.states, strict=True):
            seen[state] = row.ids[: mark + 1]
    assert sorted(seen) == list(range(len(whole.steps) + 1))
    for state, ids in seen.items():
        served = [token for segment in encoder.newest(whole.prefix(state)) for token in segment]
        assert tuple(served) == ids
        assert ids[0] == 7


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40), limit=st.integers(18, 60))
def test_windows_fit_cover_every_state_once_and_keep_the_task_and_the_newest_round(lengths, limit):
    cut = windows(lengths, limit)
    assert [t for window in cut for t in range(window.first, window.last + 1)] == list(range(len(lengths)))
    for window in cut:
        for state in range(window.first, window.last + 1):
            assert lengths[0] + sum(lengths[window.start + 1 : state + 1]) <= limit
            assert window.start < max(state, 1)
            assert newest_start(lengths[: state + 1], limit) == window.start


def test_the_oldest_half_of_the_rounds_goes_at_once():
    assert windows([10] * 9, 55) == [(0, 0, 4), (3, 5, 7), (6, 8, 8)]
    assert windows([10] * 9, None) == [(0, 0, 8)]


def test_a_prompt_that_cannot_fit_is_an_error_that_names_the_limit():
    with pytest.raises(CriticError, match=r"state 1 take 30 tokens and the critic's limit is 25"):
        windows([10, 20, 5], 25)


def test_an_older_round_that_is_too_long_is_dropped():
    with pytest.raises(PromptTooLong, match="state 2 take 210 tokens and the critic's limit is 55"):
        newest_start([10, 5, 200], 55)
    assert newest_start([10, 5, 200, 5], 55) == 2
    assert newest_start([10, 5, 200, 5, 7], 55) == 2
    assert newest_start([10, 5, 200, 5, 60, 9], 55) == 4
    with pytest.raises(PromptTooLong):
        windows([10, 5, 200, 5], 55)  # if every state must be scored, this state cannot be


def test_the_two_formats_read_as_documented():
    trajectory = Trajectory(Task("t", "Goal: {x}"), (Step("a", "o", thought="why"), Step("b", "p")))
    assert DIALOGUE.segments(trajectory) == (
        "<|user|>Goal: {x}<|assistant|>",
        "Thought: why\nAction: a<|end|><|user|>o<|assistant|>",
        "Action: b<|end|><|user|>p<|assistant|>",
    )
    assert "".join(PLAIN.segments(trajectory)) == (
        "Goal: {x}\nValue:\nThought: why\nAction: a\nObservation: o\nValue:\nAction: b\nObservation: p\nValue:"
    )


def test_a_format_of_actions_omits_the_thoughts():
    trajectory = Trajectory(Task("t", "Goal: x"), (Step("a", "o", thought="why"), Step("b", thought="so")))
    assert DIALOGUE_ACTIONS.prompt(trajectory, ("GOOD", "BAD")) == (
        "<|user|>Goal: x<|assistant|>",
        "Action: a<|end|><|user|>o<|assistant|>",
        "Action: b<|end|>",
        "<|assistant|>",
    )
    with pytest.raises(ConfigurationError, match=r"expected \['observation', 'turn'\] or \['action', 'observation'\]"):
        PromptFormat("x", "{instruction}", "{turn} {action} {observation}", "\n")


def test_a_format_round_trips_through_json_and_another_version_is_refused():
    assert PromptFormat.from_json(PLAIN.to_json()) == PLAIN
    with pytest.raises(CheckpointError, match="version 2"):
        PromptFormat.from_json({**PLAIN.to_json(), "version": 2})
    with pytest.raises(CheckpointError, match="colour"):
        PromptFormat.from_json({**PLAIN.to_json(), "colour": "red"})


@pytest.mark.parametrize(
    "change", [{"opening": "no field"}, {"round": "{turn} alone"}, {"opening": "{instruction} {x}"}, {"marker": ""}]
)
def test_a_format_that_loses_text_is_refused(change):
    with pytest.raises(ConfigurationError):
        PromptFormat(**{**PLAIN.to_json(), **change})
