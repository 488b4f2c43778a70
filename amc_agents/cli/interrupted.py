"""What to do after Ctrl-C: commands keep what is finished, and most of them can go on."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

STATUS = 130
"""Exit status of an interrupted command, as shells report it."""
_FLAG_OF = {
    "bench": "--resume", "explore": "--resume", "train": "--resume",
    "tune": None, "collect": None, "import": None, "score": None,
}  # fmt: skip
"""Command -> the flag with which it goes on; None: the same command does."""


def advice(arguments: Sequence[str]) -> str:
    """Say how to go on with an interrupted command.

    >>> advice(["bench", "--out", "my results"])
    "interrupted; finished results are kept. Go on with: amc bench --out 'my results' --resume"

    Args:
        arguments: of the command line, without the program.
    """
    command = arguments[0] if arguments else ""
    if command not in _FLAG_OF:
        return "interrupted"
    flag = _FLAG_OF[command]
    added = [flag] if flag is not None and flag not in arguments else []
    return f"interrupted; finished results are kept. Go on with: {shlex.join(['amc', *arguments, *added])}"
