"""What is said before a training: data that teach nothing, that flatter the metrics, or that the base cannot read."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from amc_agents.critics.render import PLAIN, Encoder
from amc_agents.critics.value.hf import HFCritic
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.models.embedded import WordTokenizer, model_folder
from amc_agents.models.tokenizers import TemplateTokenizer
from amc_agents.training.data_checks import check_data, check_words, held_out_tasks, warning_of
from amc_agents.training.dataset import LoggedTrajectory, write_shard
from amc_agents.training.ranking import ranking
from amc_agents.training.value.train_value import EMBEDDED, train_value
from amc_agents.types import Step, Task, Trajectory

IMPORTED = json.dumps({"imported": {"kind": "chat"}})


def record(task, outcome, *, instruction=None, settings=IMPORTED, group=0):
    whole = Trajectory(Task(task, instruction or f"Do {task}."), (Step("act", "seen", reward=outcome),), True)
    return LoggedTrajectory(whole, group, settings=settings)


def checked(records, **settings):
    return check_data(records, validation_share=0.5, seed=0, **settings)


GOOD = [record(f"t{n}", float(outcome), group=outcome) for n in range(6) for outcome in (0, 1)]


def test_good_data_have_no_warnings():
    assert checked(GOOD) == []


def test_equal_outcomes_are_refused_unless_asked_for():
    equal = [record(f"t{n}", 0.5) for n in range(4)]
    with pytest.raises(ConfigurationError, match=r"all 4 trajectories have the outcome 0.5.*--anyway") as caught:
        checked(equal)
    assert len(str(caught.value)) <= 400
    assert checked(equal, anyway=True) == [str(caught.value)]


def test_no_outcome_is_an_error_with_its_remedy():
    with pytest.raises(CheckpointError, match=r"no trajectory with a known outcome.*amc import --outcomes"):
        checked([])


def test_tasks_without_different_outcomes_are_a_warning():
    (warning,) = checked([record(f"t{n}", float(n % 2), group=g) for n in range(6) for g in (0, 1)])
    assert warning.startswith("No task has runs with different outcomes (12 runs of 6 tasks)")
    assert "amc import --task" in warning


def test_equal_instructions_under_several_ids_are_a_warning():
    again = [replace(each, trajectory=replace(each.trajectory, task=Task(f"copy {each.trajectory.task.id}",
             f"do  {each.trajectory.task.id.upper()}."))) for each in GOOD]  # fmt: skip
    (warning,) = checked([*GOOD, *again])
    held_out, of = (int(word) for word in warning.split() if word.isdecimal())
    assert 0 < held_out <= of == 6
    assert "have the instruction of a training task under another id" in warning


def test_trajectories_of_a_search_are_a_warning():
    searched = [replace(each, settings=json.dumps({"search": {}, "imported": {}})) for each in GOOD]
    (warning,) = checked(searched)
    assert warning.startswith("12 trajectories were drawn by a search")


def test_benchmark_data_and_the_test_split_are_said_once():
    played = [replace(each, settings=json.dumps({"world": "crafting", "split": "test"})) for each in GOOD]
    split, benchmark = checked(played)
    assert split.startswith("12 trajectories were collected from the test split")
    assert "All trajectories were played in a benchmark" in benchmark
    # A mixture is not benchmark-only, and trajectories in memory have no origin.
    assert len(checked([*played, *GOOD])) == 1
    assert checked([replace(each, settings="{}") for each in GOOD]) == []


KNOWN = "Crafting commands:\ncraft 1 oak gate using 2 clay\n\nGoal: craft oak gate."


def crafting_encoder():
    return Encoder(PLAIN, TemplateTokenizer.of_words(WordTokenizer.from_folder(model_folder("crafting"))))


def said(text, times=1):
    return Trajectory(Task("t", KNOWN), (*[Step("get 1 clay", "Got 1 clay")] * times, Step(text)))


def test_a_word_level_base_names_the_words_that_it_does_not_know():
    encoder = crafting_encoder()
    strange = [said("Hello refund department")]
    with pytest.raises(
        ConfigurationError, match=r"\(at most 5%\), such as 'Hello', 'refund', 'department'\. Choose.*--base"
    ) as e:
        check_words(strange, encoder)
    assert len(str(e.value)) <= 400
    words = check_words(strange, encoder, anyway=True)
    (warning,) = warning_of(words, strange, encoder)
    assert warning.startswith(
        f"{words.share:.1%} of the words are unknown to the base model, such as 'Hello', 'refund'"
    )


def test_one_percent_is_a_warning_and_less_is_not():
    encoder = crafting_encoder()
    rare, rarer = [said("refund", 8)], [said("refund", 40)]
    words = check_words(rare, encoder)
    assert 0.01 < words.share < 0.05
    assert len(warning_of(words, rare, encoder)) == 1
    words = check_words(rarer, encoder)
    assert 0 < words.share < 0.01
    assert warning_of(words, rarer, encoder) == []


def subword_tokenizer(byte_level):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if byte_level:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel()
        raw.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    else:
        raw = Tokenizer(models.BPE(unk_token="<unk>"))
        raw.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"])
    raw.train_from_iterator(["the lamp is broken and the lamp is sold"] * 3, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token=None if byte_level else "<unk>")


def test_subwords_with_an_unknown_token_are_counted_and_bytes_can_spell_every_text():
    texts = [Trajectory(Task("t", "the lamp"), (Step("broken", "返品 Ж"),))]
    subwords = Encoder(PLAIN, TemplateTokenizer.of_transformers(subword_tokenizer(byte_level=False)))
    with pytest.raises(ConfigurationError, match="'返品', 'Ж'"):
        check_words(texts, subwords)
    in_bytes = Encoder(PLAIN, TemplateTokenizer.of_transformers(subword_tokenizer(byte_level=True)))
    words = check_words(texts, in_bytes)
    assert words.share == 0
    assert warning_of(words, texts, in_bytes) == []


@pytest.mark.thorough
def test_a_training_reports_its_warnings_and_its_ranking(base_model, toy_trajectories, tmp_path):
    whole = toy_trajectories(12, 4)
    records = [LoggedTrajectory(each, at % 4, settings=json.dumps({"world": "toy"})) for at, each in enumerate(whole)]
    # A late outcome does not take part.
    late = replace(whole[0], steps=(*whole[0].steps[:-1], Step("a", "b", reward=math.nan)))
    write_shard(tmp_path / "data", [*records, replace(records[0], trajectory=late, group=4)])
    warned = []
    # Some trajectories are longer than 60 tokens, so that they are trained and scored in several windows.
    settings = replace(EMBEDDED, epochs=1, validation_share=0.5, max_tokens=60)
    checkpoint = train_value(base_model, tmp_path / "data", tmp_path / "value", settings, warn=warned.append)
    same_instruction, benchmark = warned  # the toy problem draws an instruction for several tasks
    assert "under another id" in same_instruction
    assert "played in a benchmark" in benchmark
    assert checkpoint.metrics["warnings"] == warned
    assert 0 < checkpoint.metrics["unknown_words"] < 0.01  # "a" and "b" in the late trajectory
    held_out = held_out_tasks({each.task.id for each in whole}, 0.5, np.random.default_rng(0))
    chosen = [each for each in whole if each.task.id in held_out]
    values = HFCritic(tmp_path / "value").state_values(chosen)
    expected = ranking(zip(chosen, values, strict=True), predicts="future").as_plain()
    reported = checkpoint.metrics["ranking"]
    assert reported["comparison"] == "siblings"
    assert (reported["auc"]["pairs"], reported["auc"]["tasks"]) == (expected["auc"]["pairs"], expected["auc"]["tasks"])
    assert reported["auc"]["mean"] == pytest.approx(expected["auc"]["mean"], abs=0.02)
    card = (tmp_path / "value" / "README.md").read_text()
    assert "## Does it rank siblings?" in card
    assert reported["sentences"][0].split(".")[0] in card
    assert "All trajectories were played in a benchmark" in card


@pytest.mark.thorough
def test_a_model_that_learnt_the_problem_ranks_siblings(trained):
    report = trained.checkpoint.metrics["ranking"]
    assert (report["comparison"], report["verdict"]) == ("siblings", "ranks")
    assert report["by_step"]["1"]["mean"] > 0.9
    assert report["rivals"]["instruction"]["lead"]["low"] > 0


def test_a_training_on_equal_outcomes_is_refused_before_it_begins(base_model, toy_trajectories, tmp_path):
    successes = [each for each in toy_trajectories(6, 4) if each.return_ == 1]
    with pytest.raises(ConfigurationError, match="have the outcome 1"):
        train_value(base_model, successes, tmp_path / "equal")
    assert list(tmp_path.iterdir()) == []
