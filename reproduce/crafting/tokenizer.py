"""Makes the word-level tokenizer of the embedded crafting model: one token per whole item name.

    python reproduce/crafting/tokenizer.py FOLDER

A token carries its own leading space, so that decoding is concatenation and nothing is lost.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from amc_agents.envs.crafting.generate import CRAFTED, RAW

SPECIAL = ("<unk>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>")
PHRASES = (
    "Crafting commands:", "Goal:", "Thought:", "Action:", "Got", "Crafted", "Inventory:", "craft", " craft",
    " get", " inventory", " using", "Could not find", "Could not execute", "Wrong item format:",
    " enough items to craft", " a valid recipe for", " You are not carrying anything.",
    "\n", ",", ".", " [", "]", " (", ")", " ",
)  # fmt: skip
NORMALIZED = (("minecraft:", ""), ("_", " "), ("[", "[ "))
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def words() -> list[str]:
    """Every token that is not special, in the order of its id."""
    items = [f" {name}" for name in (*CRAFTED, *RAW)]
    numbers = [f" {digit}" for digit in range(10)] + [str(digit) for digit in range(10)]
    return [*PHRASES, *numbers, *items]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, chat template included."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *words()))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(old, new) for old, new in NORMALIZED])
    # Longest first, so that an item's name wins over a shorter one inside it; then any single character.
    longest_first = sorted(words(), key=len, reverse=True)
    pattern = "|".join([*(re.escape(word).replace("\\\n", "\n") for word in longest_first), "."])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    make_tokenizer().save_pretrained(folder)
    print(f"{len(words()) + len(SPECIAL)} tokens -> {folder}")
