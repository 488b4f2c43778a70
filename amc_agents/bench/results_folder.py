"""The folder that holds the results of a job: one JSON line for each work item, written as soon as the item ends.

The runs of a comparison and the trials of an exploration are both work items: plain values with a stable key.

A results folder holds `settings.json`, which all its results share, and `records*.jsonl` with one JSON object a line.
What else a comparison stores there is in `amc_agents.bench.run_files`. Each process that works on the folder writes its
own files. `software.json` lists the versions that have worked on the folder. The folder of a demo also holds a marker
file (`DEMO`).
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import JsonLinesFile, read_json_object, replace_file, sole_user, storage_errors, taking_turns
from amc_agents.quoting import quoted

ItemKey = tuple[str, str, int]
"""(method, task, seed)"""


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One unit of work: a method or agent, a task and a seed. Plain values, so that items can be stored and sent."""

    name: str
    """Name of the method or agent."""
    task: str
    """Id of the task."""
    seed: int

    @property
    def key(self) -> ItemKey:
        """Identifies the item and its result, in every process and after a restart."""
        return self.name, self.task, self.seed


class ResultLine(Protocol):
    """The result of one work item: one line of a results folder."""

    @property
    def key(self) -> ItemKey:
        """The key of the work item."""
        ...

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        ...


ResultT = TypeVar("ResultT", bound=ResultLine, covariant=True)


@dataclass(frozen=True)
class RunLine:
    """What is stored of one run of a comparison: one line of a file. Subclasses add fields."""

    method: str
    task: str
    seed: int
    """Seed of the comparison. The seed of the run is derived from it, the task and the method."""

    @property
    def key(self) -> ItemKey:
        """The key of the run's work item."""
        return self.method, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Invert `to_json`; lists become tuples. Raises `TypeError` for other values."""
        fields: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**fields)


LineT = TypeVar("LineT", bound=RunLine)
SETTINGS = "settings.json"
RECORDS = "records*.jsonl"
DECISIONS = "decisions*.jsonl"
FAILURES = "failures*.jsonl"
TRAJECTORIES = "trajectories*.jsonl"
LOCKS = ".*lock"
ENTERING = ".entering"
SOFTWARE = "software.json"
CLAIMS = "claims.sqlite"
VERSION = 1
DEMO = "amc-demo.txt"
"""Marks a folder whose results `amc demo` may replace."""


class ResultsFolder:
    """The results of one job. A context manager: results can be added inside its `with` block.

    Args:
        path: the folder; created if it does not exist.
        settings: settings that all results share, as plain values.
        methods: settings of each method or agent (plain values); a later call may add methods.
        resume: continue with the results in the folder. Otherwise a folder that holds results is refused.
        worker: names this process's file in a folder that several share.

    Raises:
        ConfigurationError: the folder holds results and `resume` is not set, or results with other settings.
    """

    def __init__(
        self,
        path: str | Path,
        settings: Mapping[str, Any],
        methods: Mapping[str, Mapping[str, Any]],
        *,
        resume: bool = False,
        worker: str = "",
    ) -> None:
        self.path = Path(path)
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._file = worker_file(self.path, "records", worker)
        self._open = ExitStack()
        if not resume and any(self.path.glob(RECORDS)):
            raise ConfigurationError(
                f"{self.path} holds results of an earlier run: continue it (--resume), or choose another folder"
            )
        # A round trip through JSON turns tuples into lists, as in the stored settings.
        given: dict[str, Any] = json.loads(json.dumps({"settings": settings, "methods": methods}))
        self._check_and_store(given)
        _add_software(self.path / SOFTWARE)
        # Results that do not come from a demo must survive the next one.
        (self.path / DEMO).unlink(missing_ok=True)

    def __enter__(self) -> ResultsFolder:
        lock = self.path / f".{self._file.path.stem}.lock"
        with ExitStack() as stack:
            stack.enter_context(sole_user(lock, doing="another run of this command"))
            stack.enter_context(self._file)
            self._open = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    def add(self, result: ResultLine) -> None:
        """Append a result. The operating system has the whole line when this returns."""
        self._file.append(result.to_json())

    def _check_and_store(self, given: dict[str, Any]) -> None:
        stored = self._stored_settings()
        if stored is not None:
            _require_equal(self.path, stored["settings"], given["settings"], "")
            for name in stored["methods"].keys() & given["methods"].keys():
                _require_equal(self.path, stored["methods"][name], given["methods"][name], f"{name}: ")
            given["methods"] = stored["methods"] | given["methods"]
        replace_file(self.path / SETTINGS, json.dumps({"version": VERSION, **given}, indent=1) + "\n")

    def _stored_settings(self) -> dict[str, Any] | None:
        file = self.path / SETTINGS
        if not file.exists():
            return None
        stored = read_json_object(file, remedy="use another folder, or restore the file")
        if stored.get("version") != VERSION:
            raise ConfigurationError(f"{file} has version {stored.get('version')}, not {VERSION}: use another folder")
        if not isinstance(stored.get("settings"), dict) or not isinstance(stored.get("methods"), dict):
            raise CheckpointError(f"{file} lacks `settings` or `methods`: use another folder, or restore the file")
        return stored


def _require_equal(folder: Path, stored: Mapping[str, Any], given: Mapping[str, Any], prefix: str) -> None:
    differing = [name for name in sorted(stored.keys() | given.keys()) if stored.get(name) != given.get(name)]
    if differing:
        listed = "; ".join(
            f"{prefix}{name} was {quoted(stored.get(name))}, is {quoted(given.get(name))}" for name in differing
        )
        raise ConfigurationError(f"{folder} was made with other settings ({listed}): use them, or another folder")


def worker_file(folder: str | Path, kind: str, worker: str = "") -> JsonLinesFile:
    """Return the file in which one process stores lines of a kind; `worker` names it in a folder that several share."""
    return JsonLinesFile(Path(folder) / f"{kind}{worker and '-'}{worker}.jsonl")


def _add_software(file: Path) -> None:
    """Add the versions of this process's software to those that have worked on a folder."""
    known = read_software(file.parent)
    if software() not in known:
        replace_file(file, json.dumps({"sets": [*known, software()]}, indent=1) + "\n")


def read_software(folder: str | Path) -> list[dict[str, str]]:
    """Return the sets of versions that have worked on a folder; empty for folders of older versions of this library.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = Path(folder) / SOFTWARE
    return list(read_json_object(file, remedy="remove it").get("sets", [])) if file.exists() else []


PACKAGES = ("amc-agents", "langchain", "langchain-core", "langgraph", "numpy", "torch", "transformers")


@cache
def software() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that results depend on."""
    return {"python": platform.python_version()} | {name: found for name in PACKAGES if (found := _version(name))}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def read_results(path: str | Path, parse: Callable[[Mapping[str, Any]], ResultT]) -> list[ResultT]:
    """Read all results of a folder, one for each key. A last line that an interruption cut short is left out.

    Args:
        path: the folder.
        parse: reads one line; raises for other values, as reading them does.

    Raises:
        CheckpointError: a line other than a file's last one cannot be read.
    """
    results: dict[ItemKey, ResultT] = {}
    for file in sorted(Path(path).glob(RECORDS)):
        for result in read_lines(file, parse, "a record"):
            results.setdefault(result.key, result)
    return list(results.values())


def newest_lines(path: str | Path, pattern: str, kind: type[LineT], content: str) -> dict[ItemKey, LineT]:
    """Read the newest line of each run: a run that was interrupted between two of its files is repeated.

    Args:
        path: the results folder.
        pattern: names the files.
        kind: class of the lines.
        content: names the content of a line, for errors.

    Raises:
        CheckpointError: a line other than a file's last one cannot be read.
    """
    files = sorted(Path(path).glob(pattern))
    return {line.key: line for file in files for line in read_lines(file, kind.from_json, content)}


def read_lines(file: Path, parse: Callable[[Mapping[str, Any]], ResultT], content: str) -> Iterator[ResultT]:
    """Read the complete lines of a file.

    Args:
        file: the file, one JSON object a line.
        parse: reads one line; raises for other values, as reading them does.
        content: names the content of a line, for errors.

    Raises:
        CheckpointError: a complete line cannot be read.
    """
    lines = file.read_bytes().split(b"\n")
    # The text after the last line break is empty, or a line that is being written.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            yield parse(json.loads(line))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"{file}, line {number}, is not {content}: {quoted(error)}") from error


def checked_numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored numbers, which may be null.

    Raises:
        TypeError: a value is text, true, false, or not finite.
    """
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value)):
            raise TypeError(f"{name} is {quoted(value, 40)}: expected a finite number")
    return dict(values)


@contextmanager
def sole_run(path: str | Path, *, doing: str) -> Iterator[None]:
    """Hold a results folder for one run, which may have several processes.

    Args:
        path: the folder; created if it does not exist.
        doing: the command, for the error.

    Raises:
        ConfigurationError: another run holds the folder, or workers of a killed run are still writing.
    """
    folder = Path(path)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with sole_user(folder / ".lock", doing=doing):
        for lock in folder.glob(".records*lock"):
            with sole_user(lock, doing=f"a worker of an earlier {doing}"):
                pass
        try:
            yield
        finally:
            for lock in folder.glob(LOCKS):
                lock.unlink(missing_ok=True)


@contextmanager
def entering(path: str | Path, *, doing: str) -> Iterator[None]:
    """Enter a results folder that several runs share, while the block runs; wait for others that are entering.

    Args:
        path: the folder; created if it does not exist.
        doing: the command, for the error.

    Raises:
        ConfigurationError: a run that does not share the folder holds it.
    """
    folder = Path(path)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with taking_turns(folder / ENTERING), sole_user(folder / ".lock", doing=doing):
        yield


@contextmanager
def demo_folder(path: str | Path) -> Iterator[None]:
    """Clear a folder for a demo's results, and mark it so that the next demo may replace them.

    Raises:
        ConfigurationError: the folder is not empty and does not come from a demo. Nothing was removed.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is a file: name a folder for the results")
    if path.exists() and any(path.iterdir()) and not (path / DEMO).is_file():
        raise ConfigurationError(
            f"{path} holds files and is not a folder of `amc demo`, which replaces its content: choose an empty or a "
            "new folder (--out)"
        )
    clear(path)
    try:
        yield
    finally:
        if path.is_dir():
            (path / DEMO).write_text("Results of `amc demo`. The next demo in this folder replaces them.\n")


def clear(path: str | Path) -> None:
    """Remove the results, decisions, failures and settings of a folder, and no other file.

    Raises:
        ConfigurationError: a run is using the folder.
    """
    folder = Path(path)
    if not folder.exists():
        return
    with sole_run(folder, doing="a run that writes here"):
        for pattern in (RECORDS, DECISIONS, FAILURES, TRAJECTORIES, SETTINGS, SOFTWARE, CLAIMS):
            for file in folder.glob(pattern):
                file.unlink(missing_ok=True)
