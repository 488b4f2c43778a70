"""Markdown that no value can break: tables, code blocks and escaped text, printable and without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from amc_agents.quoting import masked, printable


def table(header: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    r"""Format a table whose cells are Markdown.

    A line end or an unescaped pipe inside a cell does not break the table. Cells from outside that must appear
    literally go through `text` first.

    Args:
        header: `[C]` headings.
        rows: `[C]` cells each.
        align: `[C]` letters: "l" for a left-aligned column, "r" for a right-aligned one.

    >>> print(table(["method", "score"], [["a|b", "0.5"]], "lr"))
    | method | score |
    | --- | ---: |
    | a\|b | 0.5 |
    """
    rule = ["---:" if letter == "r" else "---" for letter in align]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in (header, rule, *rows))


def value_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format a table of values: every cell is escaped by `text`, and columns of numbers are right-aligned."""
    body = [list(row) for row in rows]
    numeric = ({type(row[i]) for row in body if row[i] != ""} <= {int, float} for i in range(len(header)))
    align = "".join("r" if right else "l" for right in numeric)
    return table([text(heading) for heading in header], ([text(value) for value in row] for row in body), align)


def text(value: Any) -> str:
    r"""Escape a value so that Markdown shows it literally, on one line.

    >>> text("a|b\n<c> *d*"), text(0.1234567), text(3), text(None), text(("q_proj", "v_proj"))
    ('a\\|b \\<c\\> \\*d\\*', '0.1235', '3', 'none', 'q_proj, v_proj')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value)) or "none"
    one_line = printable(" ".join(masked(str(value)).split()))
    # Markdown ignores an underscore inside a word.
    return re.sub(r"[\\`*\[\]<>|~&#$]|(?<!\w)_|_(?!\w)", r"\\\g<0>", one_line)


def block(value: str, language: str = "") -> str:
    r"""Wrap a text in a code fence longer than any fence inside it.

    >>> block("a\n```\nb")
    '````\na\n```\nb\n````'
    """
    value = printable(masked(value))
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{value}\n{fence}"


def code(value: str) -> str:
    r"""Format a text as inline code.

    >>> code("vllm:http://x"), code("a`b"), code("a|b")
    ('`vllm:http://x`', '`` a`b ``', '`a|b`')
    """
    one_line = printable(" ".join(masked(value).split()))
    if "`" not in one_line:
        return f"`{one_line}`"
    longest = max(len(run) for run in re.findall("`+", one_line))
    fence = "`" * (longest + 1)
    return f"{fence} {one_line} {fence}"


def _cell(markdown: str) -> str:
    one_line = printable(" ".join(markdown.split()))
    # A backslash is consumed with the character that it escapes, so that only unescaped pipes are replaced.
    return re.sub(r"(\\.)|\|", lambda match: match[1] or r"\|", one_line)
