"""Texts to token ids, special tokens from the template alone, whatever tokenizer does it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

from amc_agents.critics.template import Segment
from amc_agents.models.embedded.tokenizer import WordTokenizer

Tokenize = Callable[[str], Sequence[int]]
"""Token ids of one segment, without special tokens of its own."""


MOST_UNKNOWN = 0.05
"""Share of unknown words above which a text cannot be read."""


class UnknownWords(NamedTuple):
    """What a tokenizer of whole words does not know of some texts. One without unknown words counts none at all."""

    unknown: int
    words: int
    example: str
    """One of the unknown words."""

    @property
    def too_many(self) -> bool:
        """Whether the texts cannot be read."""
        return self.unknown > MOST_UNKNOWN * self.words

    def __str__(self) -> str:
        share = self.unknown / max(self.words, 1)
        return f"{share:.0%} of the words are unknown to it, such as {self.example[:40]!r} (at most {MOST_UNKNOWN:.0%})"


class TemplateTokenizer:
    """A `Tokenize` that lets nobody but the template write a special token.

    A text that is no `Segment` is all the template's. A segment without forged tokens gets the very ids that its text
    gets, so that a model is asked exactly as it was trained.

    Args:
        tokenize: reads special tokens that are spelled out in a text.
        plain: reads them as any other text.
        special_ids: the special tokens. The one for unknown words does not count: ordinary text brings it about.
        unknown_id: the token for unknown words; None: there is none.
    """

    def __init__(
        self, tokenize: Tokenize, plain: Tokenize, special_ids: Collection[int], unknown_id: int | None = None
    ) -> None:
        self._tokenize, self._plain = tokenize, plain
        self._special_ids, self._unknown_id = frozenset(special_ids) - {unknown_id}, unknown_id
        self._written: dict[str, list[int]] = {}
        self._words = lru_cache(maxsize=50_000, typed=True)(self._counted)

    @classmethod
    def of_transformers(cls, tokenizer: Any) -> TemplateTokenizer:
        """Of a `transformers` tokenizer, fast or slow."""

        def ids(text: str, **how: bool) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False, **how)["input_ids"])

        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls(ids, lambda text: ids(text, split_special_tokens=True), special, tokenizer.unk_token_id)

    @classmethod
    def of_words(cls, tokenizer: WordTokenizer) -> TemplateTokenizer:
        """Of the embedded models' own tokenizer."""
        plain = partial(tokenizer.encode, special=False)
        return cls(tokenizer.encode, plain, tokenizer.special_ids, tokenizer.unknown_id)

    def __call__(self, text: str) -> list[int]:
        """Token ids of a text."""
        ids = list(self._tokenize(str(text)))
        if not isinstance(text, Segment):
            return ids
        expected = [token for words in text.pieces[::2] for token in self._special(words)]
        return ids if self._among(ids) == expected else self._apart(text)

    def unknown_words(self, texts: Iterable[str]) -> UnknownWords:
        """How much of some texts the tokenizer does not know; of segments, what the template did not write."""
        unknown = words = 0
        example = ""
        for text in texts:
            some, of = self._words(text)
            unknown, words = unknown + some, words + of
            if some and not example:
                example = next(filter(None, map(self._unknown_word, _pieces(text))), "")
        return UnknownWords(unknown, words, example)

    def _counted(self, text: str) -> tuple[int, int]:
        """(unknown, all) words of a text. A run of unknown tokens is one word.

        A phrase of the vocabulary may begin in the template and end in a piece ("Action: turn left"), so that the piece
        alone is unknown but the whole text is not.
        """
        unknown = words = 0
        for piece in _pieces(text) if self._unknown_id is not None else ():
            known = [token != self._unknown_id for token in self._plain(piece)]
            begun = sum(not now and before for before, now in pairwise([True, *known]))
            unknown, words = unknown + begun, words + begun + sum(known)
        in_context = sum(token == self._unknown_id for token in self(text)) if unknown else 0
        return min(unknown, in_context), words

    def _unknown_word(self, text: str) -> str:
        return next((word for word in text.split() if self._unknown_id in self._plain(f" {word}")), "")

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


def _pieces(text: str) -> tuple[str, ...]:
    """What the template did not write."""
    return text.pieces[1::2] if isinstance(text, Segment) else (text,)


def as_stored(text: str, tokenize: Tokenize) -> str:
    """A segment as a checkpoint keeps it: as plain text, unless that alone would give other token ids."""
    return str(text) if list(tokenize(str(text))) == list(tokenize(text)) else text
