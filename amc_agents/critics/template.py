"""Templates of prompts, and segments, which record the parts of a text that come from the template.

Only a template may contain special tokens. Text from an agent or a world stays text, even if it spells a role token.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from amc_agents.errors import ConfigurationError


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
        """Whether a text can come from the template: it contains the template's words in order.

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
            f"{what}: {text!r:.100} is not a template ({error}): double a literal brace"
        ) from error
    for before, field, layout, conversion in parts:
        words[-1] += before
        if field is None:
            continue
        if layout or conversion or not field.isidentifier():
            raise ConfigurationError(
                f"{what}: expected fields that are plain names, such as {{turn}}, got {field[:40]!r} with the format "
                f"{(layout or '')[:40]!r} and the conversion {conversion!r}: formats and attributes are refused"
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
