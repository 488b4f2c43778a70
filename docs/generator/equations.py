"""Equations as MathML, which browsers show without a script: a page then needs neither a server nor the internet."""

from __future__ import annotations

import html
import re
from pathlib import Path

from latex2mathml.converter import convert

EQUATION = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)
MARKED = re.compile(r"^\\[(\[](.*)\\[)\]]$", re.DOTALL)


def render_equations(site: Path) -> None:
    """Replace the TeX in every page of a built site."""
    for page in site.rglob("*.html"):
        text = page.read_text()
        if 'class="arithmatex"' in text:
            page.write_text(EQUATION.sub(_mathml, text))


def _mathml(match: re.Match[str]) -> str:
    tex = MARKED.match(html.unescape(match[2]).strip())
    if tex is None:
        raise ValueError(f"an equation is not marked as expected: {match[2]!r}")
    return convert(tex[1].strip(), display="block" if match[1] == "div" else "inline")
