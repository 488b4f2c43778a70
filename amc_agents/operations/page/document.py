"""The page around the sections: its head, style, scripts, and the policy that keeps it from loading anything."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from importlib.resources import files

from amc_agents.operations.page.markup import Child, Html, element, embedded_json, escaped, join


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
