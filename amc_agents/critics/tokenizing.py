"""Texts to token ids, special tokens from the template alone, whatever tokenizer does it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from amc_agents.critics.template import Segment
from amc_agents.models.embedded.tokenizer import WordTokenizer

Tokenize = Callable[[str], Sequence[int]]
"""Token ids of one segment, without special tokens of its own."""


class TemplateTokenizer:
    """A `Tokenize` that lets nobody but the template write a special token.

    A text that is no `Segment` is all the template's. A segment without forged tokens gets the very ids that its text
    gets, so that a model is asked exactly as it was trained.

    Args:
        tokenize: reads special tokens that are spelled out in a text.
        plain: reads them as any other text.
        special_ids: the special tokens, the one for unknown words left out: ordinary text brings it about.
    """

    def __init__(self, tokenize: Tokenize, plain: Tokenize, special_ids: Collection[int]) -> None:
        self._tokenize, self._plain, self._special_ids = tokenize, plain, frozenset(special_ids)
        self._written: dict[str, list[int]] = {}

    @classmethod
    def of_transformers(cls, tokenizer: Any) -> TemplateTokenizer:
        """Of a `transformers` tokenizer, fast or slow."""

        def ids(text: str, **how: bool) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False, **how)["input_ids"])

        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls(ids, lambda text: ids(text, split_special_tokens=True), special - {tokenizer.unk_token_id})

    @classmethod
    def of_words(cls, tokenizer: WordTokenizer) -> TemplateTokenizer:
        """Of the embedded models' own tokenizer."""
        special = tokenizer.special_ids - {tokenizer.unknown_id}
        return cls(tokenizer.encode, lambda text: tokenizer.encode(text, special=False), special)

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids = list(self._tokenize(str(text)))
        if not isinstance(text, Segment):
            return ids
        expected = [token for words in text.pieces[::2] for token in self._special(words)]
        return ids if self._among(ids) == expected else self._apart(text)

    def _apart(self, text: Segment) -> list[int]:
        """Ids of a segment with forged tokens: cut where the template has its own, plain text in between."""
        ids: list[int] = []
        plain = ""
        for place, piece in enumerate(text.pieces):
            if place % 2 or not self._special(piece):
                plain += piece
                continue
            ids += [*(self._plain(plain) if plain else ()), *self._tokenize(piece)]
            plain = ""
        return ids + list(self._plain(plain) if plain else ())

    def _special(self, words: str) -> list[int]:
        """The special tokens in a template's words: few texts, asked for again and again."""
        if words not in self._written:
            self._written[words] = self._among(self._tokenize(words)) if words else []
        return self._written[words]

    def _among(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in self._special_ids]


def as_stored(text: str, tokenize: Tokenize) -> str:
    """A segment as a checkpoint keeps it: as plain text, unless that alone would give other token ids."""
    return str(text) if list(tokenize(str(text))) == list(tokenize(text)) else text
