"""Makes the word-level tokenizer of the small BabyAI model: one token per thing, per distance and per action.

    python reproduce/babyai/tokenizer.py FOLDER

A token carries its own leading space, so that decoding is concatenation and nothing is lost.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>")
PHRASES = (
    "Actions:", "Goal:", "Thought:", "Action:", "There is no such action.", "You see nothing",
    " turn left", " turn right", " go forward", " pick up", " drop", " toggle", " go to", " the", " a",
    "You see a", " You see a", "You carry a", " wall", " and", " I see a", " I see no", " I carry a",
    "\n", ",", ".",
)  # fmt: skip
VERDICT = ("Reflection:", "This step is", " This step is", " GOOD", " BAD", " UNKNOWN", "GOOD", "BAD", "UNKNOWN")
"""Never seen by the policy; a verdict that is trained on top of it learns them."""
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
THINGS = tuple(f" {colour} {kind}" for colour in COLOURS for kind in ("key", "ball", "box"))
PLACES = tuple(
    f" {steps} step{'s' if steps > 1 else ''} {side}" for side in ("left", "right", "forward") for steps in range(1, 7)
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def words() -> list[str]:
    """Every token that is not special, in the order of its id."""
    return [*PHRASES, *THINGS, *PLACES, *VERDICT]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, chat template included."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *words()))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    # Longest first, so that a phrase wins over a shorter one inside it; then any single character.
    longest_first = sorted(words(), key=len, reverse=True)
    pattern = "|".join([*(re.escape(word).replace("\\\n", "\n") for word in longest_first), "."])
    tokenizer.normalizer = normalizers.Sequence([])
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
