"""Runs the code of a tutorial and compares what it prints with the outputs on the page.

A tutorial is a page whose Python blocks are one program, from top to bottom. A block of `text` right after a Python
block is what that block prints. After a change, write the new outputs into the page and read them:

    python docs/generator/tutorials.py docs/tutorials/*.md
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?", re.DOTALL | re.MULTILINE)


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield the code of each Python block, and the output that the page shows after it."""
    for block in BLOCK.finditer(text):
        yield block["code"], block["output"] or ""


def run(text: str, page: str) -> Iterator[str]:
    """Run the blocks as a single program and yield what each prints."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, (code, _) in enumerate(blocks(text)):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(code, f"{page}, block {number}", "exec"), names)
        yield printed.getvalue()


def with_outputs(text: str, printed: list[str]) -> str:
    """Return the page with these outputs after its blocks."""
    left = iter(printed)

    def shown(block: re.Match[str]) -> str:
        output = next(left)
        return f"```python\n{block['code']}```\n" + (f"\n```text\n{output}```\n" if output else "")

    return BLOCK.sub(shown, text)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_outputs(path.read_text(), list(run(path.read_text(), path.name))))
