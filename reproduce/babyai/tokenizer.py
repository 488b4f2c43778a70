"""Build the word-level tokenizer of the small BabyAI model: one token per object, per distance and per action.

    python reproduce/babyai/tokenizer.py FOLDER

FOLDER gets the files of a transformers tokenizer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from reproduce.word_tokenizer import word_tokenizer

PHRASES = (
    "Actions:", "Goal:", "Thought:", "Action:", "There is no such action.", "You see nothing",
    " turn left", " turn right", " go forward", " pick up", " drop", " toggle", " go to", " the", " a",
    "You see a", " You see a", "You carry a", " wall", " and", " I see a", " I see no", " I carry a",
    "\n", ",", ".",
)  # fmt: skip
VERDICT = ("Reflection:", "This step is", " This step is", " GOOD", " BAD", " UNKNOWN", "GOOD", "BAD", "UNKNOWN")
"""Words that the policy never sees; a verdict model trained on top of it learns them."""
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
THINGS = tuple(f" {colour} {kind}" for colour in COLOURS for kind in ("key", "ball", "box"))
PLACES = tuple(
    f" {steps} step{'s' if steps > 1 else ''} {side}" for side in ("left", "right", "forward") for steps in range(1, 7)
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Build the tokenizer, chat template included."""
    return word_tokenizer((*PHRASES, *THINGS, *PLACES, *VERDICT), normalizer=normalizers.Sequence([]))


if __name__ == "__main__":
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(Path(sys.argv[1]))
    print(f"{len(tokenizer)} tokens -> {sys.argv[1]}")
