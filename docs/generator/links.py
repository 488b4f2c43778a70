"""Relative links of Markdown pages, outside of code blocks."""

from __future__ import annotations

import re
from collections.abc import Callable

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]*)(#[^)\s]*)?\)")
FENCE = re.compile(r"^\s*(```+|~~~+)")
LIST_ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to the prose of a page, and leave its code blocks as they are."""
    pieces: list[tuple[bool, list[str]]] = [(False, [])]
    fence = ""
    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        opens = bool(mark) and not fence
        if opens:
            pieces.append((True, []))
            fence = mark[1] if mark else ""
        pieces[-1][1].append(line)
        if mark and not opens and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
            pieces.append((False, []))
    return "".join("".join(lines) if is_code else change("".join(lines)) for is_code, lines in pieces)


def relinked(text: str, target: Callable[[str], str]) -> str:
    """Return the page with each relative link replaced by `target(link)`; anchors stay."""

    def replaced(match: re.Match[str]) -> str:
        return f"]({target(match[1])}{match[2] or ''})"

    return outside_code(text, lambda prose: LINK.sub(replaced, prose))


def with_separate_lists(text: str) -> str:
    """Put an empty line before each list that follows a paragraph at once; Python-Markdown needs it."""

    def separated(prose: str) -> str:
        lines: list[str] = []
        for line in prose.splitlines(keepends=True):
            before = lines[-1] if lines else "\n"
            continues = LIST_ITEM.match(before) or before.startswith((" ", "\t")) or not before.strip()
            if LIST_ITEM.match(line) and not continues:
                lines.append("\n")
            lines.append(line)
        return "".join(lines)

    return outside_code(text, separated)
