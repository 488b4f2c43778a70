"""Readers take linear time: for a text 16 times as long, far less than the 256 times of a quadratic reader.

Processor time is compared, the least of several repetitions. A linear reader takes 16 times as long; the limit is 64.
"""

from __future__ import annotations

import json
import time
from itertools import product

import pytest

from tests.fuzz.inputs import INPUTS
from tests.fuzz.parsers import ATIF, CHAT, FILE_PARSERS, LANGSMITH, MESSAGES, OTLP, TEXT_PARSERS
from tests.fuzz.test_parsers import error_of

SHORT, LONGER = 2_000, 16
LEAST = 1e-4
"""Seconds that a short text counts at least; less cannot be measured."""
ENDS = ("", "x", "\n", ")")
PARSERS = [parser for parser in TEXT_PARSERS if parser.words]


def seconds(parser, given, repetitions=3):
    """The least processor time of several readings."""
    least = float("inf")
    for _ in range(repetitions):
        start = time.process_time()
        error_of(parser, given)
        least = min(least, time.process_time() - start)
    return least


def grows_linearly(parser, long_input):
    """Whether `long_input(16 n)` takes less than 64 times as long as `long_input(n)`."""
    short, long = long_input(SHORT), long_input(LONGER * SHORT)
    for _ in range(3):
        taken = seconds(parser, long)
        if taken <= 64 * max(LEAST, seconds(parser, short)):
            return True
    return False


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_long_text_takes_linear_time(parser):
    pieces = (*parser.words, " ", "\n", "1")
    texts = list(product(("", *parser.words), pieces, ENDS))
    # In a larger run all; otherwise a few, other ones for each parser.
    chosen = texts if INPUTS > 50 else texts[len(parser.name) % 7 :: max(1, len(texts) // 2)]
    for begin, piece, end in chosen:

        def long_input(length, begin=begin, piece=piece, end=end):
            return begin + piece * (length // len(piece)) + end

        assert grows_linearly(parser, long_input), (begin, piece, end)


LONG_RECORDS = {
    "chat": lambda n: {**CHAT, "messages": CHAT["messages"] * n},
    "atif": lambda n: {**ATIF, "steps": ATIF["steps"] * n},
    "langsmith": lambda n: {**LANGSMITH, "outputs": {"messages": MESSAGES * n}},
    "otlp": lambda n: {"resourceSpans": OTLP["resourceSpans"] * n},
}
"""Kind of logs -> a record that is n times as long."""


@pytest.mark.thorough
@pytest.mark.parametrize("kind", LONG_RECORDS)
def test_a_long_record_takes_linear_time(kind):
    (parser,) = (parser for parser in FILE_PARSERS if parser.name == f"{kind} logs")
    assert grows_linearly(parser, lambda length: json.dumps(LONG_RECORDS[kind](length // 100)).encode())
