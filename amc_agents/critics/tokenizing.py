"""Templates, segments of text, and their token ids: only a template's words become special tokens.

Text from an agent or a world stays text, even if it spells a role token. A `Template` fills it into a `Segment`, which
records the parts that come from the template, and a `TemplateTokenizer` tokenizes the segment with any tokenizer.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

from amc_agents.errors import ConfigurationError
from amc_agents.models.tokenizers import WordTokenizer
from amc_agents.quoting import quoted

Tokenize = Callable[[str], Sequence[int]]
"""Maps the text of a segment to token ids, without automatic special tokens."""
MOST_UNKNOWN = 0.05
"""Share of unknown words above which a model cannot read a text."""


class Segment(str):
    """A text in pieces: the template's words at even positions, filled-in text at odd positions.

    Segments are equal if their pieces are equal: the same text in different pieces has a different meaning.
    """

    pieces: tuple[str, ...]

    def __new__(cls, *pieces: str) -> Segment:
        """Join the pieces."""
        segment = super().__new__(cls, "".join(pieces))
        segment.pieces = pieces
        return segment

    def __eq__(self, other: object) -> bool:
        """Compare pieces with a segment, and text with a plain string."""
        return self.pieces == other.pieces if isinstance(other, Segment) else str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Negate `__eq__`, since `str` defines `__ne__`, too."""
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type[Segment], tuple[str, ...]]:
        """Support pickle and copy."""
        return Segment, self.pieces


class Template(NamedTuple):
    """A text with fields. Fields are plain names, without formats or attributes."""

    words: tuple[str, ...]
    """The text before each field, and the text after the last field."""
    fields: tuple[str, ...]
    """Names of the fields, in order."""

    @classmethod
    def parse(cls, text: str, what: str) -> Template:
        """Parse a template such as `"{turn}<|end|>{observation}"`. A literal brace is doubled.

        Args:
            text: the template.
            what: the template's name, for the message.

        Raises:
            ConfigurationError: a brace is unbalanced, or a field is more than a name (`{turn:>9}`, `{turn.x}`).
        """
        return _parsed(text, what)

    def fill(self, ending: str = "", **texts: str) -> Segment:
        """Fill in the fields, and append `ending` to the template's words."""
        *before, last = self.words
        filled = (piece for words, field in zip(before, self.fields, strict=True) for piece in (words, texts[field]))
        return Segment(*filled, last + ending)

    def wrote(self, text: str, ending: str = "") -> bool:
        """True if a text can come from the template: it contains the template's words in order.

        The search takes linear time, unlike a regular expression.
        """
        first, *between, last = self.words
        at = len(first)
        for words in between:
            if (start := text.find(words, at)) < 0:
                return False
            at = start + len(words)
        last += ending
        return text.startswith(first) and text.endswith(last) and at + len(last) <= len(text)


@lru_cache(maxsize=64)
def _parsed(text: str, what: str) -> Template:
    words, fields = [""], []
    try:
        parts = list(string.Formatter().parse(text))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"{what}: {quoted(text, 100)} is not a template ({error}): double a literal brace"
        ) from error
    for before, field, layout, conversion in parts:
        words[-1] += before
        if field is None:
            continue
        if layout or conversion or not field.isidentifier():
            raise ConfigurationError(
                f"{what}: expected fields that are plain names, such as {{turn}}, got {quoted(field, 40)} with the "
                f"format {quoted(layout or '', 40)} and the conversion {quoted(conversion)}: formats and attributes "
                "are refused"
            )
        fields.append(field)
        words.append("")
    return Template(tuple(words), tuple(fields))


def segments_to_json(texts: Iterable[str]) -> list[str | list[str]]:
    """Convert texts to plain values: a segment to the list of its pieces, any other text to itself."""
    return [list(text.pieces) if isinstance(text, Segment) else text for text in texts]


def segments_from_json(values: Iterable[str | list[str]]) -> tuple[str, ...]:
    """Restore from `segments_to_json`."""
    return tuple(value if isinstance(value, str) else Segment(*value) for value in values)


class UnknownWords(NamedTuple):
    """Unknown words in texts. A tokenizer without a token for unknown words counts no words at all."""

    unknown: int
    words: int
    example: str
    """An unknown word."""

    @property
    def too_many(self) -> bool:
        """True if the model cannot read the texts."""
        return self.unknown > MOST_UNKNOWN * self.words

    @property
    def share(self) -> float:
        """Share of the words that are unknown."""
        return self.unknown / max(self.words, 1)

    def __str__(self) -> str:
        example = f"{quoted(self.example, 40)} (at most {MOST_UNKNOWN:.0%})"
        return f"{self.share:.0%} of the words are unknown to it, such as {example}"


class TemplateTokenizer:
    """A `Tokenize` that makes special tokens of the template's words only.

    A plain string counts as template. A segment without forged special tokens gets exactly the ids of its text, so that
    a model reads in use what it read in training.

    Args:
        tokenize: turns special tokens that a text spells out into special tokens.
        plain: treats them as ordinary text.
        special_ids: the special tokens, except the token for unknown words, which ordinary text may contain.
        unknown_id: the token for unknown words; None: the tokenizer has no such token.
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
        """Wrap a `transformers` tokenizer, fast or slow."""

        def ids(text: str, **options: bool) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False, **options)["input_ids"])

        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        return cls(ids, lambda text: ids(text, split_special_tokens=True), special, tokenizer.unk_token_id)

    @classmethod
    def of_words(cls, tokenizer: WordTokenizer) -> TemplateTokenizer:
        """Wrap the tokenizer of the embedded models."""
        plain = partial(tokenizer.encode, special=False)
        return cls(tokenizer.encode, plain, tokenizer.special_ids, tokenizer.unknown_id)

    def __call__(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids = list(self._tokenize(str(text)))
        if not isinstance(text, Segment):
            return ids
        expected = [token for words in text.pieces[::2] for token in self._special(words)]
        return ids if self._among(ids) == expected else self._apart(text)

    def unknown_words(self, texts: Iterable[str]) -> UnknownWords:
        """Count the unknown words of texts; in segments, template words are ignored."""
        unknown = words = 0
        example = ""
        for text in texts:
            unknown_here, words_here = self._words(text)
            unknown, words = unknown + unknown_here, words + words_here
            if unknown_here and not example:
                example = next(filter(None, map(self._unknown_word, _pieces(text))), "")
        return UnknownWords(unknown, words, example)

    def unknown_examples(self, texts: Iterable[str], most: int) -> list[str]:
        """Return up to `most` different unknown words of texts, in their order."""
        pieces = (piece for text in texts if self._words(text)[0] for piece in _pieces(text))
        words = (word for piece in pieces for word in piece.split() if self._unknown_id in self._plain(f" {word}"))
        examples: dict[str, None] = {}
        for word in words:
            examples[word] = None
            if len(examples) == most:
                break
        return list(examples)

    def _counted(self, text: str) -> tuple[int, int]:
        """(unknown, all) words of a text. Consecutive unknown tokens count as one word.

        A phrase of the vocabulary may begin in the template and end in a piece ("Action: turn left"), so that the piece
        alone is unknown but the whole text is not.
        """
        unknown = words = 0
        for piece in _pieces(text) if self._unknown_id is not None else ():
            known = [token != self._unknown_id for token in self._plain(piece)]
            starts = sum(not now and before for before, now in pairwise([True, *known]))
            unknown, words = unknown + starts, words + starts + sum(known)
        in_context = sum(token == self._unknown_id for token in self(text)) if unknown else 0
        return min(unknown, in_context), words

    def _unknown_word(self, text: str) -> str:
        return next((word for word in text.split() if self._unknown_id in self._plain(f" {word}")), "")

    def _apart(self, text: Segment) -> list[int]:
        """Ids of a segment with forged special tokens, which are tokenized as ordinary text."""
        ids: list[int] = []
        plain = ""
        for position, piece in enumerate(text.pieces):
            if position % 2 or not self._special(piece):
                plain += piece
                continue
            ids += [*(self._plain(plain) if plain else ()), *self._tokenize(piece)]
            plain = ""
        return ids + list(self._plain(plain) if plain else ())

    def _special(self, words: str) -> list[int]:
        """The special tokens in a template's words, cached because they are few."""
        if words not in self._written:
            self._written[words] = self._among(self._tokenize(words)) if words else []
        return self._written[words]

    def _among(self, ids: Sequence[int]) -> list[int]:
        return [token for token in ids if token in self._special_ids]


def _pieces(text: str) -> tuple[str, ...]:
    """The filled-in pieces of a segment, or the whole of a plain string."""
    return text.pieces[1::2] if isinstance(text, Segment) else (text,)


def as_stored(text: str, tokenize: Tokenize) -> str:
    """Reduce a segment to plain text for a checkpoint, unless its token ids would change."""
    return str(text) if list(tokenize(str(text))) == list(tokenize(text)) else text
