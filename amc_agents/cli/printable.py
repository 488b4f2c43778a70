"""Text of others on a terminal: shown, never obeyed."""

from __future__ import annotations

import re

import typer

_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, escape sequences and carriage returns among them
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what changes the order of the text around it
    "\ud800-\udfff]"  # bytes of a path that are no text
)


def printable(text: str) -> str:
    r"""A text whose control characters are written out, so that a terminal shows them instead of obeying.

    Line ends and tabs stay. The notation is JSON's, so JSON stays what it was.

    >>> printable("\x1b[2J\rok\n")
    '\\u001b[2J\\u000dok\n'
    """
    return _UNPRINTABLE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def echo(text: str, *, err: bool = False) -> None:
    """Print a text that others may have written: the one way to do so in the command line, beside `console`."""
    typer.echo(printable(text), err=err)
