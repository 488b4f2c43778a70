"""The corpus of dialogues of reproduce/worlds."""

import pytest

from reproduce.worlds import corpus


def dialogues_of(number):
    return [(f"task {number}", [(f"act {number}", f"answer {repetition}")]) for repetition in range(3)]


@pytest.mark.thorough
def test_an_interrupted_corpus_is_completed_and_equals_an_uninterrupted_one(tmp_path):
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    corpus.write_corpus(whole, 4, dialogues_of)
    text = whole.read_text()
    for cut in range(len(text) + 1):
        torn.write_text(text[:cut])
        corpus.write_corpus(torn, 4, dialogues_of)
        assert torn.read_text() == text
    assert corpus.read_corpus(whole)[3] == ("task 1", [("act 1", "answer 0")])


def test_a_complete_corpus_grows(tmp_path):
    path, played = tmp_path / "new" / "corpus.jsonl", []

    def play(number):
        played.append(number)
        return dialogues_of(number)

    corpus.write_corpus(path, 2, dialogues_of)
    corpus.write_corpus(path, 5, play)
    assert played == [1, 2, 3, 4]
    assert [first for first, _ in corpus.read_corpus(path)] == [
        f"task {number}" for number in range(5) for _ in range(3)
    ]
