"""Hostile input of every parser: it is read, or refused with a named error in one short printable line.

`AMC_FUZZ_INPUTS=10000` sets the number of inputs of each parser.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings

from amc_agents.errors import AmcError
from amc_agents.quoting import printable
from tests.fuzz.inputs import INPUTS
from tests.fuzz.parsers import PARSERS

LONGEST = 400
"""Characters of a message."""


def error_of(parser, given):
    """The message of the named error that refuses an input, or None; any other error passes."""
    with TemporaryDirectory(prefix="amc-fuzz-") as folder:
        try:
            parser.read(given, Path(folder))
        except parser.errors as error:
            # A plain ValueError is what a parser's docstring names; its subclasses are accidents.
            if not isinstance(error, AmcError) and type(error) is not ValueError:
                raise
            return str(error).replace(folder, "")
    return None


def property_of(parser):
    """The property that a parser must have, as a function without arguments that hypothesis runs."""

    # The same inputs in every test run; others in each larger run, which a failure prints.
    @settings(max_examples=INPUTS, derandomize=INPUTS <= 50, database=None, suppress_health_check=list(HealthCheck))
    @given(parser.inputs)
    def check(given):
        message = error_of(parser, given) or ""
        assert len(message) <= LONGEST, message
        assert printable(message) == message
        assert "\n" not in message

    return check


@pytest.mark.thorough
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_input_is_read_or_refused_by_name(parser):
    property_of(parser)()
