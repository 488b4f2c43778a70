"""Small repositories with failing tests, generated from the package's modules by mutations."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from pathlib import Path

import numpy as np

from amc_agents.errors import ConfigurationError
from amc_agents.types import Task
from amc_agents_workspace.checking import Report, run_tests
from amc_agents_workspace.mutations import Mutation, mutations

MODULES = {
    "train": ("accounts", "graphs", "search", "texts"),
    "test": ("boards", "dates", "geometry", "intervals", "matrices", "queues", "shop", "versions"),
}
"""Split -> its modules. The splits share no module."""
DEFECTS = (2, 4)
"""Least and greatest number of wrong lines of a bug."""
_FOLDER = Path(__file__).parent / "modules"


@dataclass(frozen=True)
class Bug:
    """Payload of a `Task` for a `CodingWorld`: a module with wrong lines, and its tests."""

    module: str
    """Name of the module; its file and its test file are named after it."""
    source: str
    """The module with the wrong lines."""
    defects: tuple[Mutation, ...]
    """What makes the lines wrong. Each alone makes a test fail."""

    @property
    def files(self) -> dict[str, str]:
        """Name -> text of the repository's files."""
        return {f"{self.module}.py": self.source, f"test_{self.module}.py": suite_of(self.module)}


def generate_bugs(n_tasks: int, split: str = "test", first: int = 0) -> Iterator[Task]:
    """Generate tasks with different bugs, from number `first` of the split on.

    Every bug makes tests fail, and every test passes without it: both are verified by running the tests.

    Raises:
        ConfigurationError: the split does not exist.
    """
    if split not in MODULES:
        raise ConfigurationError(f"expected a split of {', '.join(MODULES)}, got {split!r}")
    return islice(_bugs(split), first, first + n_tasks)


@lru_cache(maxsize=64)
def original(module: str) -> str:
    """Return the correct source of a module."""
    return (_FOLDER / f"{module}.py").read_text(encoding="utf-8")


@lru_cache(maxsize=64)
def suite_of(module: str) -> str:
    """Return the tests of a module."""
    return (_FOLDER / f"test_{module}.py").read_text(encoding="utf-8")


def check(module: str, source: str) -> Report:
    """Run the tests of a module with this source."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), Bug(module, source, ()))
        return run_tests(Path(folder))


def write_files(folder: Path, bug: Bug) -> None:
    """Write the files of a bug's repository into a folder."""
    for name, text in bug.files.items():
        (folder / name).write_text(text, encoding="utf-8", newline="")


def _bugs(split: str) -> Iterator[Task]:
    seen = set()
    numbers = count()
    for seed in count():
        rng = np.random.default_rng([list(MODULES).index(split), seed])
        bug = _draw(str(rng.choice(MODULES[split])), rng)
        if bug.source in seen:
            continue
        seen.add(bug.source)
        report = check(bug.module, bug.source)
        if not report.success:
            yield Task(f"{bug.module}/{split}/{next(numbers)}", _instruction(bug, report), bug)


def _draw(module: str, rng: np.random.Generator) -> Bug:
    source = original(module)
    possible = [mutations(source)[index] for index in rng.permutation(len(mutations(source)))]
    defects: list[Mutation] = []
    n_defects = int(rng.integers(DEFECTS[0], DEFECTS[1] + 1))
    for mutation in possible:
        if len(defects) == n_defects:
            break
        if mutation.line not in {defect.line for defect in defects} and _fails(module, mutation):
            defects.append(mutation)
    for defect in defects:
        source = defect.apply(source)
    return Bug(module, source, tuple(sorted(defects)))


@lru_cache(maxsize=4096)
def _fails(module: str, mutation: Mutation) -> bool:
    """Return whether a mutation makes a test fail, and the tests pass without it."""
    source = original(module)
    return _passes(module) and not check(module, mutation.apply(source)).success


@lru_cache(maxsize=64)
def _passes(module: str) -> bool:
    return check(module, original(module)).success


def _instruction(bug: Bug, report: Report) -> str:
    return f"""\
The repository has the files {" and ".join(bug.files)}. Some tests fail. Make them pass; you may not edit the tests.
Commands, one per answer:
read FILE
edit FILE FIRST-LAST
followed by the text that replaces these lines (no text deletes them)
test
{report}"""
