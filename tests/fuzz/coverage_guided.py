"""Coverage-guided fuzzing of a parser, where atheris is installed (`pip install atheris`).

    python -m tests.fuzz.coverage_guided "posterior" -runs=100000

The first argument is the name of a parser in `tests/fuzz/parsers.py`, the others are those of libFuzzer.
"""

from __future__ import annotations

import sys
from importlib import import_module


def main() -> None:
    atheris = import_module("atheris")
    with atheris.instrument_imports(include=["amc_agents"]):
        parsers = {parser.name: parser for parser in import_module("tests.fuzz.parsers").PARSERS}
    if len(sys.argv) < 2 or sys.argv[1] not in parsers:
        sys.exit(f"name a parser: {', '.join(parsers)}")
    check = import_module("tests.fuzz.test_parsers").property_of(parsers[sys.argv[1]])
    atheris.Setup([sys.argv[0], *sys.argv[2:]], check.hypothesis.fuzz_one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
