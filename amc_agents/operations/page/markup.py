"""HTML pages: markup in which every text is escaped, JSON that can be embedded, and the page around the sections.

A page has a policy that keeps it from loading anything.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files
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


def details(summary: Child, *content: Child) -> Html:
    """Build a block that unfolds on click."""
    return element("details", element("summary", summary), *content)


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


def document(
    title: str,
    headline: str,
    sections: Iterable[Html],
    *,
    kicker: Child = None,
    summary: Child = None,
    footer: Child = None,
    library: str = "",
) -> str:
    """Build a self-contained page.

    Args:
        title: of the window.
        headline: the result as a sentence.
        sections: the content, as `section` builds it.
        kicker: a few words above the headline that say what the page is about.
        summary: a paragraph below the headline.
        footer: how the page was made.
        library: JavaScript of a plotting library, which the page's charts need.
    """
    scripts = [*([library] if library else []), _resource("page.js")]
    header = element(
        "header",
        element("p", kicker, class_="kicker") if kicker else None,
        element("h1", _unbroken(headline)),
        element("p", summary, class_="summary") if summary else None,
    )
    body = [header, element("main", *sections), element("footer", footer) if footer else None]
    head = [
        Html('<meta charset="utf-8">'),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(scripts)),
        Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        Html('<meta name="referrer" content="no-referrer">'),
        element("title", title),
        Html(f"<style>{_resource('page.css')}</style>"),
    ]
    written = [Html(f"<script>{script}</script>") for script in scripts]
    return "<!doctype html>\n" + join(
        [Html('<html lang="en">'), element("head", *head), element("body", *body, *written), Html("</html>\n")], "\n"
    )


def section(heading: str, *content: Child, note: Child = None) -> Html:
    """Build a section with a heading that can be linked to, and a sentence that explains it."""
    name = "-".join("".join(letter if letter.isalnum() else " " for letter in heading.lower()).split())
    explained = None if note is None else element("p", note, class_="note")
    return element("section", element("h2", heading, id=name), explained, *content, aria_labelledby=name)


def figures(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Build a row of key figures: (label, figure)."""
    boxes = (element("div", element("dt", label), element("dd", figure)) for label, figure in pairs)
    return element("dl", *boxes, class_="figures")


def data(values: object, class_: str) -> Html:
    """Embed plain values that the page's script reads."""
    return Html(f'<script type="application/json" class="{escaped(class_)}">{embedded_json(values)}</script>')


def inline_script(text: str) -> str:
    r"""Return JavaScript that can stand in a `<script>` element: no string in it can end the element.

    >>> inline_script("a = '</script>'")
    "a = '<\\/script>'"
    """
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _unbroken(sentence: str) -> Html:
    """Keep words with hyphens and numbers with signs on one line."""
    words = (
        element("span", word, class_="whole") if "-" in word and len(word) < 24 else word for word in sentence.split()
    )
    return join(words, " ")


def _policy(scripts: Sequence[str]) -> str:
    """Allow these scripts and inline styles, and nothing from anywhere else."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:"


@lru_cache(maxsize=4)
def _resource(name: str) -> str:
    return files("amc_agents.operations.page").joinpath(name).read_text(encoding="utf-8")
