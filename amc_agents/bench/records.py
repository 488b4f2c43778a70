"""Raw results on disk: one line for each run, kept as soon as it ends.

A results folder holds `settings.json`, what all its records share, and `records*.jsonl`, one JSON object a line;
where asked for, also `decisions*.jsonl` (`amc_agents.bench.decisions`). Every process that works on a folder at the
same time writes files of its own. A demo's folder has a mark besides (`DEMO`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from amc_agents.bench.scores import Cost, Particles, Scores
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import JsonLinesFile, read_json_object, replace_file, sole_user, storage_errors

SETTINGS = "settings.json"
RECORDS = "records*.jsonl"
DECISIONS = "decisions*.jsonl"
LOCKS = ".*lock"
VERSION = 1
DEMO = "amc-demo.txt"
"""Marks a folder whose results `amc demo` may replace."""


class ResultLine(Protocol):
    """One line of a results folder."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is the result of: method, task, seed."""
        ...

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        ...


ResultT = TypeVar("ResultT", bound=ResultLine)


@dataclass(frozen=True)
class RunResult:
    """The raw result of one run: one line of a results folder."""

    method: str
    task: str
    seed: int
    """The comparison's seed; the run's own is derived from it, the task and the method."""
    scores: Scores
    cost: Cost
    notes: tuple[str, ...] = ()
    """The run's: particles lost, a critic that fell back."""
    particles: Particles | None = None
    """What the scores are made of; None in results of older versions."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What a record is the result of."""
        return self.method, self.task, self.seed

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunResult:
        """The inverse of `to_json`. Raises `KeyError` or `TypeError` where `values` is not a record."""
        return cls(
            method=values["method"],
            task=values["task"],
            seed=values["seed"],
            scores=Scores(**values["scores"]),
            cost=Cost(**values["cost"]),
            notes=tuple(values["notes"]),
            particles=_particles(values["particles"]) if values.get("particles") else None,
        )


class ResultsFolder:
    """Where one comparison keeps its records. A context manager: open while records are added.

    Args:
        path: the folder; made if need be.
        settings: what every record has in common (plain values).
        methods: settings of each method (plain values); a later call may add methods.
        resume: go on with what is there; without it, a folder that holds records is refused.
        worker: name of this process's file, where several share the folder.

    Raises:
        ConfigurationError: the folder holds records and `resume` is not set, or was made with other settings.
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
        self._file = JsonLinesFile(self.path / f"records{worker and '-'}{worker}.jsonl")
        self._open = ExitStack()
        if not resume and any(self.path.glob(RECORDS)):
            raise ConfigurationError(
                f"{self.path} holds results of an earlier run: go on with them (--resume), or choose another folder"
            )
        given: dict[str, Any] = json.loads(json.dumps({"settings": settings, "methods": methods}))
        kept = self._kept_settings()
        if kept is not None:
            _same(self.path, kept["settings"], given["settings"], "")
            for name in kept["methods"].keys() & given["methods"].keys():
                _same(self.path, kept["methods"][name], given["methods"][name], f"{name}: ")
            given["methods"] = kept["methods"] | given["methods"]
        replace_file(self.path / SETTINGS, json.dumps({"version": VERSION, **given}, indent=1) + "\n")
        # Whoever adds results that are no demo's, with --resume or through Python, wants to keep them.
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

    def add(self, record: ResultLine) -> None:
        """Keep a record: it is in the file when this returns."""
        self._file.append(record.to_json())

    def _kept_settings(self) -> dict[str, Any] | None:
        file = self.path / SETTINGS
        if not file.exists():
            return None
        kept = read_json_object(file, remedy="use another folder, or restore the file")
        if kept.get("version") != VERSION:
            raise ConfigurationError(f"{file} has version {kept.get('version')}, not {VERSION}: use another folder")
        if not isinstance(kept.get("settings"), dict) or not isinstance(kept.get("methods"), dict):
            raise CheckpointError(f"{file} lacks `settings` or `methods`: use another folder, or restore the file")
        return kept


@contextmanager
def sole_run(path: str | Path, *, doing: str) -> Iterator[None]:
    """Hold a results folder for one run of several processes.

    Args:
        path: the folder; made if need be.
        doing: the command, for the error.

    Raises:
        ConfigurationError: another run holds it, or workers of a run that was killed are still writing.
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


def _particles(values: Mapping[str, Any]) -> Particles:
    return Particles(**{name: tuple(of_each) for name, of_each in values.items()})


def read_run_results(path: str | Path) -> list[RunResult]:
    """All records of a folder, each once; a last line that was cut short by an interruption is left out.

    Raises:
        CheckpointError: a line that is not a record, elsewhere than at a file's end.
    """
    return read_results(path, RunResult.from_json)


def read_results(path: str | Path, from_json: Callable[[Mapping[str, Any]], ResultT]) -> list[ResultT]:
    """The same for lines of another kind; `from_json` raises `KeyError` or `TypeError` where a line is not of it."""
    found: dict[tuple[str, str, int], ResultT] = {}
    for file in sorted(Path(path).glob(RECORDS)):
        lines = file.read_text(encoding="utf-8").split("\n")
        # What follows the last line break is empty, or a line that was being written.
        for number, line in enumerate(lines[:-1], start=1):
            try:
                record = from_json(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(f"{file}, line {number}, is not a record: {error!r}") from error
            found.setdefault(record.key, record)
    return list(found.values())


@contextmanager
def demo_folder(path: str | Path) -> Iterator[None]:
    """Make room for a demo's results: what is inside the block may write them, and the next demo replace them.

    Raises:
        ConfigurationError: the folder holds anything and is not an earlier demo's. Nothing was removed.
    """
    path = Path(path)
    if path.exists() and not path.is_dir():
        raise ConfigurationError(f"{path} is a file: name a folder for the results")
    if path.exists() and any(path.iterdir()) and not (path / DEMO).is_file():
        raise ConfigurationError(
            f"{path} holds files and is no folder of `amc demo`, which replaces what it finds: choose an empty or a "
            "new folder (--out)"
        )
    clear(path)
    try:
        yield
    finally:
        if path.is_dir():
            (path / DEMO).write_text("Results of `amc demo`. The next demo in this folder replaces them.\n")


def clear(path: str | Path) -> None:
    """Remove a folder's records, decisions and settings, and nothing else.

    Raises:
        ConfigurationError: a run is using them.
    """
    folder = Path(path)
    if not folder.exists():
        return
    with sole_run(folder, doing="a run that writes here"):
        for pattern in (RECORDS, DECISIONS, SETTINGS):
            for file in folder.glob(pattern):
                file.unlink(missing_ok=True)


def _same(folder: Path, kept: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    differing = [name for name in sorted(kept.keys() | given.keys()) if kept.get(name) != given.get(name)]
    if differing:
        listed = "; ".join(f"{what}{name} was {kept.get(name)!r}, is {given.get(name)!r}" for name in differing)
        raise ConfigurationError(f"{folder} was made with other settings ({listed}): use them, or another folder")
