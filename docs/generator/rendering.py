"""Corrections of the built pages: equations as MathML, and pipes in tables.

Browsers show MathML without a script, so a page with equations needs neither a server nor the internet.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
CODE_IN_CELL = re.compile(r"(?<=<code>)[^<]*\\\|[^<]*(?=</code>)")
MARKED = re.compile(r"^\\[(\[](.*)\\[)\]]$", re.DOTALL)


def correct_pages(site: Path) -> None:
    """Correct every page of a built site."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        if (corrected := corrected_page(text)) != text:
            page.write_text(corrected)


def corrected_page(text: str) -> str:
    """Return a page with its TeX as MathML, and with a pipe where code in a table has an escaped pipe.

    In a table, GitHub reads an escaped pipe inside of code as a pipe. Python-Markdown shows the backslash.
    """
    return CODE_IN_CELL.sub(lambda code: code[0].replace("\\|", "|"), EQUATION.sub(_mathml, text))


def _mathml(match: re.Match[str]) -> str:
    tex = MARKED.match(html.unescape(match[2]).strip())
    if tex is None:
        raise ValueError(f"an equation is not marked as expected: {match[2]!r}")
    return convert(tex[1].strip(), display="block" if match[1] == "div" else "inline")
