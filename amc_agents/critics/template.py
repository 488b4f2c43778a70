"""Templates of prompts, and texts that remember which of their words are the template's.

Special tokens come from a template alone: what an agent or a world writes is text, even where it spells a role token.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from amc_agents.errors import ConfigurationError


class Segment(str):
    """A text made of pieces: the template's words at even places, what others wrote at odd ones.

    Equal to another segment only where the pieces are: one text may be cut in two ways, and mean two things.
    """

    pieces: tuple[str, ...]

    def __new__(cls, *pieces: str) -> Segment:
        """The pieces, joined."""
        segment = super().__new__(cls, "".join(pieces))
        segment.pieces = pieces
        return segment

    def __eq__(self, other: object) -> bool:
        """By pieces; a plain text is compared as text."""
        return self.pieces == other.pieces if isinstance(other, Segment) else str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """The opposite: `str` has one of its own."""
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[type[Segment], tuple[str, ...]]:
        """For pickle and copy."""
        return Segment, self.pieces


class Template(NamedTuple):
    """Words of ours around fields for texts of others. Plain fields alone: no formats, no attributes."""

    words: tuple[str, ...]
    """What stands before each field, and after the last one."""
    fields: tuple[str, ...]
    """Names of the fields, in their order."""

    @classmethod
    def parse(cls, text: str, what: str) -> Template:
        """Read `"{turn}<|end|>{observation}"`; a brace that is meant as one is written twice.

        Args:
            text: the template.
            what: whose it is, for the message.

        Raises:
            ConfigurationError: a brace stands alone, or a field is more than a name (`{turn:>9}`, `{turn.x}`).
        """
        return _parsed(text, what)

    def fill(self, ending: str = "", **texts: str) -> Segment:
        """The template with its fields filled in, and `ending` added to its own words."""
        *before, last = self.words
        filled = (piece for words, field in zip(before, self.fields, strict=True) for piece in (words, texts[field]))
        return Segment(*filled, last + ending)

    def wrote(self, text: str, ending: str = "") -> bool:
        """Whether the template can have written a text: its words stand there in their order.

        Each is looked for once, behind the one before: linear, as a regular expression is not.
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
        raise ConfigurationError(f"{what}: {text!r:.100} is no template ({error}): write a lone brace twice") from error
    for before, field, layout, conversion in parts:
        words[-1] += before
        if field is None:
            continue
        if layout or conversion or not field.isidentifier():
            raise ConfigurationError(
                f"{what}: expected fields that are names alone, such as {{turn}}, got {field[:40]!r} with the format "
                f"{(layout or '')[:40]!r} and the conversion {conversion!r}: formats and attributes are refused"
            )
        fields.append(field)
        words.append("")
    return Template(tuple(words), tuple(fields))


def segments_to_json(texts: Iterable[str]) -> list[str | list[str]]:
    """Texts as plain values: a segment as its pieces, any other text as it is."""
    return [list(text.pieces) if isinstance(text, Segment) else text for text in texts]


def segments_from_json(values: Iterable[str | list[str]]) -> tuple[str, ...]:
    """Back from `segments_to_json`."""
    return tuple(value if isinstance(value, str) else Segment(*value) for value in values)
