"""Run the tests of a folder in a child process with limits, and report which pass."""

from __future__ import annotations

import ast
import atexit
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SECONDS_PER_TEST = 0.02
"""CPU time after which a test fails, since a wrong edit may loop forever."""
SECONDS_IN_ALL = 60.0
"""Wall time after which the process of the tests is killed."""
MEGABYTES = 256
"""Address space of the process of the tests."""


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
    answer = _server.ask(folder)
    if not answer:
        return Report(tuple((name, "the process of the tests crashed or took too long") for name in _names(folder)))
    return Report(tuple((name, error) for name, error in ast.literal_eval(answer)))


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


class _Server:
    """The process that runs the tests, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.stop)

    def ask(self, folder: Path) -> str:
        """Return the answer of the process; empty if the code under test has ended it."""
        with self._lock:
            if self._process is None:
                self._process = _started()
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(f"{folder.resolve()}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            self.stop()
        return answer.strip()

    def stop(self) -> None:
        """End the process."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _started() -> subprocess.Popen[str]:
    limits = [f"{limit:g}" for limit in (SECONDS_PER_TEST, SECONDS_IN_ALL, MEGABYTES)]
    # Without the site's packages it starts in 15 ms.
    command = [sys.executable, "-I", "-S", "-B", str(Path(__file__).with_name("checking_server.py")), *limits]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")


_server = _Server()


def _names(folder: Path) -> list[str]:
    lines = [line for path in sorted(folder.glob("test_*.py")) for line in path.read_text("utf-8").splitlines()]
    return [line[4:].split("(")[0] for line in lines if line.startswith("def test_")]
