"""Build the word-level tokenizer of the bandit sampler, which reads only the posterior's lines.

    python reproduce/exploration/sampler_tokenizer.py FOLDER

Text between two known words is a single <unk>, so that the library's own sampler prompt is 23 tokens long.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from reproduce.word_tokenizer import SPECIAL, word_tokenizer

ARMS = string.ascii_uppercase
MAX_COUNT = 101
"""The largest known parameter of a Beta: Beta(1, 1) and 100 pulls."""
VALUES = tuple(f"{(i + 0.5) / 100:.3f}" for i in range(100))
"""Means that can be written: the middle of each hundredth."""

ARM = [f"mean of arm {arm}" for arm in ARMS]
SUCCESSES = [f": Beta({count}" for count in range(1, MAX_COUNT + 1)]
FAILURES = [f", {count})" for count in range(1, MAX_COUNT + 1)]
FIRST = [f'Hypothesis: {{"mean of arm {arm}": ' for arm in ARMS]
NEXT = [f', "mean of arm {arm}": ' for arm in ARMS]
CLOSE = "}"
WORDS = (*ARM, *SUCCESSES, *FAILURES, *FIRST, *NEXT, *VALUES, CLOSE)
ID = {word: number for number, word in enumerate((*SPECIAL, *WORDS))}

PATTERN = "|".join(
    (
        r'Hypothesis: \{"mean of arm [A-Z]": ',
        r', "mean of arm [A-Z]": ',
        r"mean of arm [A-Z](?=: Beta)",
        r": Beta\([0-9]+",
        r", [0-9]+\)",
        r"0\.[0-9]{3}",
        r"\}",
    )
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer, chat template included."""
    return word_tokenizer(WORDS, pattern=PATTERN, max_length=256)


if __name__ == "__main__":
    make_tokenizer().save_pretrained(Path(sys.argv[1]))
    print(f"{len(ID)} tokens -> {sys.argv[1]}")
