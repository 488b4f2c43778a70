"""HTML markup in which every text is escaped, and JSON that can be embedded in a page."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from amc_agents.quoting import masked, printable


class Html(str):
    """A string that is markup already. Every other string is a text, and is escaped."""

    __slots__ = ()


Child = str | int | float | None | Iterable[Any]
"""A text, a number, `Html`, nothing, or a sequence of these."""

_VOID = frozenset({"br", "hr", "meta", "input", "wbr"})


def element(name: str, /, *children: Child, **attributes: Any) -> Html:
    """Build an element; texts among its children and attributes are escaped.

    Args:
        name: the tag.
        *children: the content, in order. None is left out.
        **attributes: `class_` and `for_` stand for reserved words, and an underscore stands for a hyphen. None and
            False leave an attribute out; True gives an attribute without a value.

    >>> element("a", "<b> & 'c'", class_="x", data_n=1, hidden=True, title='"')
    '<a class="x" data-n="1" hidden title="&quot;">&lt;b&gt; &amp; &#x27;c&#x27;</a>'
    """
    written = "".join(
        f" {_attribute(key)}" if value is True else f' {_attribute(key)}="{escaped(str(value))}"'
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{written}>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[Child], separator: str = "") -> Html:
    """Join children into markup."""
    return Html(separator.join(_markup(child) for child in children if child is not None))


def escaped(text: str) -> Html:
    r"""Escape a text: markup, control characters and direction overrides are shown literally, secrets are masked.

    >>> escaped("<script>\x1b[2J \u202e")
    '&lt;script&gt;\\u001b[2J \\u202e'
    """
    return Html(html.escape(printable(masked(text))))


def embedded_json(values: Any) -> Html:
    r"""Serialize plain values for a `<script type="application/json">` element, which no value can end.

    Texts are masked, and their control characters are shown, as in `escaped`.

    >>> embedded_json(["</script>", 1])
    '["\\u003c/script\\u003e",1]'
    """
    text = json.dumps(_shown(values), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(text)


def _shown(values: Any) -> Any:
    match values:
        case str():
            return printable(masked(values))
        case dict():
            return {_shown(key): _shown(value) for key, value in values.items()}
        case list() | tuple():
            return [_shown(value) for value in values]
    return values


def table(header: Sequence[Child], rows: Iterable[Sequence[Child]], align: str, *, caption: Child = None) -> Html:
    """Build a table that scrolls sideways where the screen is narrower.

    Args:
        header: `[C]` headings.
        rows: `[C]` cells each.
        align: `[C]` letters: "l" for a left-aligned column, "r" for a right-aligned one.
        caption: a sentence below the table.
    """
    sides = [{"class_": "number"} if letter == "r" else {} for letter in align]
    head = element("tr", [element("th", cell, scope="col", **side) for cell, side in zip(header, sides, strict=True)])
    body = [element("tr", [element("td", cell, **side) for cell, side in zip(row, sides, strict=True)]) for row in rows]
    written = element("table", element("thead", head), element("tbody", body))
    # A region that scrolls must be reachable by the keyboard.
    scrolling = element("div", written, class_="scroll", tabindex=0, role="region", aria_label="table")
    return join([scrolling, None if caption is None else element("p", caption, class_="caption")])


def definitions(rows: Iterable[tuple[Child, Child]]) -> Html:
    """Build a list of terms with their descriptions."""
    pairs = (element("div", element("dt", term), element("dd", description)) for term, description in rows)
    return element("dl", *pairs)


def details(summary: Child, *content: Child, is_open: bool = False) -> Html:
    """Build a block that unfolds on click."""
    return element("details", element("summary", summary), *content, open=is_open)


def paragraphs(*sentences: Child, class_: str | None = None) -> Html:
    """Build a paragraph of each text."""
    return join(element("p", sentence, class_=class_) for sentence in sentences)


def number_text(value: float) -> str:
    """Format a number for reading.

    >>> number_text(0.12345), number_text(1.0), number_text(float("nan")), number_text(float("-inf"))
    ('0.123', '1', 'unknown', '-inf')
    """
    return "unknown" if math.isnan(value) else f"{value:.3g}"


def shortened(text: str, longest: int) -> str:
    """Cut a text, and say how much is missing.

    >>> shortened("abcdef", 4)
    'abcd... (2 more characters)'
    """
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text) - longest:,} more characters)"


def _attribute(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _markup(child: Child) -> str:
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return escaped(str(child))
    return join(child or ())
