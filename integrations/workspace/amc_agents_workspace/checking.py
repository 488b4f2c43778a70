"""Run the tests of a folder in a child process with limits, and report which pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SECONDS_PER_TEST = 0.2
"""CPU time after which a test fails, since a wrong edit may loop forever."""
SECONDS_IN_ALL = 60.0
"""Wall time after which the child process is killed."""
MEGABYTES = 512
"""Address space of the child process."""
_SCRIPT = Path(__file__).with_name("checking_child.py")


@dataclass(frozen=True)
class Report:
    """The results of a folder's tests."""

    errors: tuple[tuple[str, str], ...]
    """(name, error) of each test in the order of the files; "" for a passed test."""

    @cached_property
    def passed(self) -> int:
        """Number of passed tests."""
        return sum(not error for _, error in self.errors)

    @property
    def success(self) -> bool:
        """True if there are tests and all of them pass."""
        return bool(self.errors) and self.passed == len(self.errors)

    def __str__(self) -> str:
        """The report that an agent reads: the count first, then a line for each failed test."""
        failed = [f"FAILED {name}: {error}" for name, error in self.errors if error]
        return "\n".join([f"{self.passed} of {len(self.errors)} tests pass.", *failed])


RunTests = Callable[[Path], Report]
"""Runs the tests of a folder."""


def run_tests(folder: Path) -> Report:
    """Call the functions `test_...` in the files `test_*.py` of a folder, in a child process.

    The code under test has the standard library only and is not confined otherwise. Its tests are plain functions that
    pytest can run too.
    """
    # Without the site's packages the child starts in 10 ms.
    command = [sys.executable, "-I", "-S", "-B", str(_SCRIPT), str(SECONDS_PER_TEST), str(MEGABYTES)]
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS_IN_ALL, check=False
        )
        return Report(tuple((name, error) for name, error in json.loads(done.stdout)))
    except subprocess.TimeoutExpired:
        return _all_failed(folder, f"the tests did not end within {SECONDS_IN_ALL:g} s")
    except ValueError:
        return _all_failed(folder, "the process of the tests crashed")


class Remembered:
    """Runs the tests of equal files once: for many particles that make the same edits.

    Correct only if the tests are deterministic.
    """

    def __init__(self, run: RunTests = run_tests) -> None:
        self._run = run
        self._reports: dict[tuple[tuple[str, str], ...], Report] = {}

    def __call__(self, folder: Path) -> Report:
        """Return the report of the folder's files."""
        files = tuple((path.name, path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py")))
        if files not in self._reports:
            self._reports[files] = self._run(folder)
        return self._reports[files]


def _all_failed(folder: Path, error: str) -> Report:
    lines = [line for path in sorted(folder.glob("test_*.py")) for line in path.read_text("utf-8").splitlines()]
    return Report(tuple((line[4:].split("(")[0], error) for line in lines if line.startswith("def test_")))
