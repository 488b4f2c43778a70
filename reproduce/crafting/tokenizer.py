"""Build the word-level tokenizer of the embedded crafting model: one token per whole item name.

    python reproduce/crafting/tokenizer.py FOLDER

FOLDER gets the files of a transformers tokenizer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tokenizers import normalizers
from transformers import PreTrainedTokenizerFast

from amc_agents.envs.crafting.tasks import CRAFTED, RAW
from reproduce.word_tokenizer import word_tokenizer

PHRASES = (
    "Crafting commands:", "Goal:", "Thought:", "Action:", "Got", "Crafted", "Inventory:", "craft", " craft",
    " get", " inventory", " using", "Could not find", "Could not execute", "Wrong item format:",
    " enough items to craft", " a valid recipe for", " You are not carrying anything.",
    "\n", ",", ".", " [", "]", " (", ")", " ",
)  # fmt: skip
DIGITS = (*(f" {digit}" for digit in range(10)), *(str(digit) for digit in range(10)))
WORDS = (*PHRASES, *DIGITS, *(f" {name}" for name in (*CRAFTED, *RAW)))
NORMALIZED = (("minecraft:", ""), ("_", " "), ("[", "[ "))


def make_tokenizer(more: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    """Build the tokenizer, chat template included, with more words at the end of its vocabulary."""
    replacements = [normalizers.Replace(old, new) for old, new in NORMALIZED]
    return word_tokenizer((*WORDS, *more), normalizer=normalizers.Sequence(replacements))


if __name__ == "__main__":
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(Path(sys.argv[1]))
    print(f"{len(tokenizer)} tokens -> {sys.argv[1]}")
