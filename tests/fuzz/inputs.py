"""Hostile inputs: text from the words of a grammar, and JSON with some of its values replaced."""

from __future__ import annotations

import json
import os
from typing import Any

from hypothesis import strategies as st

from tests.critics.mutations import WRONG, changed, paths

INPUTS = int(os.environ.get("AMC_FUZZ_INPUTS", "50"))
"""Number of inputs of each parser: 50 in every test run, 10,000 in `make test-fuzz`, 100,000 at night."""
NASTY = (
    "\x00",
    "\x1b[2J",
    "\r",
    "\u2028",
    "\u202e",
    "\ud800",
    "\ufeff",
    "٣",
    "²",
    "ﬃ",
    "İ",
    "1e999",
    "nan",
    "-inf",
    "9" * 400,
    "1" * 5000,
    "0x10",
    "1_000",
    "{}",
    "{0}",
    "{x}",
    "%s",
    "%(a)s",
    "../..",
    "</",
    "[" * 2000,
    '{"a":' * 2000,
)
"""Text that readers of numbers, templates, JSON and terminals may handle wrongly."""
VALUES = (*WRONG, float("nan"), float("inf"), -(10**30), "\ud800", "\x1b[31m", "1" * 5000, {"": ""}, [{}, {}])
"""Values to put in the place of others."""


def texts(*pieces: str) -> st.SearchStrategy[str]:
    """Texts of the words of a grammar, mixed with anything else."""
    words = st.sampled_from((*pieces, *pieces, *NASTY, " ", "\n", "\t", "\n\n", ":", ",", ".", "1", "-1", "0.5"))
    return st.lists(words | words | words | st.text(max_size=4), max_size=12).map("".join)


@st.composite
def mutated(draw: st.DrawFn, *documents: Any) -> Any:
    """A JSON value with up to three of its values replaced or left out."""
    document = draw(st.sampled_from(documents))
    for _ in range(draw(st.integers(0, 3))):
        places = [(), *paths(document)]
        at = draw(st.sampled_from(places))
        document = without(document, at) if draw(st.booleans()) and at else changed(document, at, draw(_VALUES))
    return document


def without(document: Any, path: tuple[Any, ...]) -> Any:
    """The JSON value without the value at a path."""
    *outer, last = path
    holder = document
    for key in outer:
        holder = holder[key]
    rest = {k: v for k, v in holder.items() if k != last} if isinstance(holder, dict) else list(holder)
    if isinstance(rest, list):
        del rest[last]
    return changed(document, tuple(outer), rest)


def bodies(*documents: Any) -> st.SearchStrategy[bytes]:
    """Bodies of HTTP answers and files: mutated JSON, most of it well-formed."""
    written = mutated(*documents).map(lambda document: json.dumps(document).encode())
    cut = st.builds(lambda body, at: body[: at % (len(body) + 1)], written, st.integers(0, 10_000))
    raw = st.sampled_from((b"", b"null", b"[" * 5000, b'{"a":' * 5000, b"\xff\xfe", b"<html>", b"1" * 5000, b"NaN"))
    return written | written | written | cut | raw | st.binary(max_size=20)


_VALUES = st.sampled_from(VALUES) | st.text(max_size=4) | st.floats() | st.integers()
