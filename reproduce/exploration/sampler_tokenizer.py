"""The word tokenizer of the bandit sampler: it sees the posterior's lines, and of all other text only that it is there.

    python reproduce/exploration/sampler_tokenizer.py FOLDER

Whatever lies between two known words is one <unk>, so that the library's own sampler prompt is 23 tokens long.
"""

from __future__ import annotations

import string
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>")
UNKNOWN, PAD, USER, ASSISTANT, END = range(len(SPECIAL))
ARMS = string.ascii_uppercase
MOST = 101
"""The largest parameter of a Beta that it knows: Beta(1, 1) and 100 pulls."""
VALUES = tuple(f"{(i + 0.5) / 100:.3f}" for i in range(100))
"""What it may say of a mean: the middle of each hundredth."""

ARM = [f"mean of arm {arm}" for arm in ARMS]
SUCCESSES = [f": Beta({count}" for count in range(1, MOST + 1)]
FAILURES = [f", {count})" for count in range(1, MOST + 1)]
FIRST = [f'Hypothesis: {{"mean of arm {arm}": ' for arm in ARMS]
NEXT = [f', "mean of arm {arm}": ' for arm in ARMS]
CLOSE = "}"
WORDS = (*SPECIAL, *ARM, *SUCCESSES, *FAILURES, *FIRST, *NEXT, *VALUES, CLOSE)
"""Every token, in the order of its id."""
ID = {word: number for number, word in enumerate(WORDS)}

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
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer, chat template included."""
    tokenizer = Tokenizer(models.WordLevel(ID, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
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
        model_max_length=256,
    )


if __name__ == "__main__":
    make_tokenizer().save_pretrained(Path(sys.argv[1]))
    print(f"{len(WORDS)} tokens -> {sys.argv[1]}")
