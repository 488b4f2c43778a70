"""Word-level tokenizers of the small models that the library ships or evaluates: one token per known phrase.

A token includes its leading space, so that decoding is concatenation and loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<unk>", "<pad>", "<|user|>", "<|assistant|>", "<|end|>")
UNKNOWN, PAD, USER, ASSISTANT, END = range(len(SPECIAL))
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def word_tokenizer(
    words: Sequence[str],
    *,
    pattern: str | None = None,
    normalizer: normalizers.Normalizer | None = None,
    max_length: int = 4096,
) -> PreTrainedTokenizerFast:
    """Build a tokenizer with a chat template. Its vocabulary is `SPECIAL`, then the words.

    Args:
        words: tokens that are not special, in the order of their ids.
        pattern: regular expression of the pieces that a text is split into; None: the words and single characters.
        normalizer: applied to a text first.
        max_length: context of the model, in tokens.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    split = _literal_pattern(words) if pattern is None else pattern
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(split), behavior="isolated")
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
        model_max_length=max_length,
    )


def _literal_pattern(words: Sequence[str]) -> str:
    # Longest first, so that a phrase wins over a shorter phrase inside it; then any single character.
    longest_first = sorted(words, key=len, reverse=True)
    return "|".join([*(re.escape(word).replace("\\\n", "\n") for word in longest_first), "."])
