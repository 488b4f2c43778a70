"""Values in Markdown: tables and blocks that no value breaks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; every cell is escaped. Numbers stand to the right where a column has nothing else."""
    body = [list(row) for row in rows]
    numeric = [{type(row[i]) for row in body if row[i] != ""} <= {int, float} for i in range(len(header))]
    lines = [
        [text(one) for one in header],
        ["---:" if one else "---" for one in numeric],
        *([text(one) for one in row] for row in body),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text(value: Any) -> str:
    r"""A value as text of one line that means itself.

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
    one_line = " ".join(str(value).split())
    # An underscore within a word is none of Markdown's signs.
    return re.sub(r"[\\`*\[\]<>|~&#$]|(?<!\w)_|_(?!\w)", r"\\\g<0>", one_line)


def block(value: str, language: str = "") -> str:
    r"""A text as it is, in a fence longer than any in it.

    >>> block("a\n```\nb")
    '````\na\n```\nb\n````'
    """
    longest = max((len(run) for run in re.findall("`+", value)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{value}\n{fence}"


def code(value: str) -> str:
    r"""A text in a line, as code.

    >>> code("vllm:http://x"), code("a`b"), code("a|b")
    ('`vllm:http://x`', '`` a`b ``', '`a|b`')
    """
    one_line = " ".join(value.split())
    if "`" not in one_line:
        return f"`{one_line}`"
    longest = max(len(run) for run in re.findall("`+", one_line))
    fence = "`" * (longest + 1)
    return f"{fence} {one_line} {fence}"
