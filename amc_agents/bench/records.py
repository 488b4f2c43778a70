"""Raw results on disk: one line for each run, kept as soon as it ends.

A results folder holds `settings.json`, what all its records share, and `records*.jsonl`, one JSON object a line;
where asked for, also `decisions*.jsonl` (`amc_agents.bench.decisions`). Every process that works on a folder at the
same time writes files of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TextIO, TypeVar

from amc_agents.bench.scores import Cost, Particles, Scores
from amc_agents.errors import CheckpointError, ConfigurationError

SETTINGS = "settings.json"
RECORDS = "records*.jsonl"
DECISIONS = "decisions*.jsonl"
VERSION = 1


class Kept(Protocol):
    """One line of a results folder."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is the result of: method, task, seed."""
        ...

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        ...


KeptT = TypeVar("KeptT", bound=Kept)


@dataclass(frozen=True)
class Record:
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
    def from_json(cls, values: Mapping[str, Any]) -> Record:
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
        self.path.mkdir(parents=True, exist_ok=True)
        self._file = self.path / f"records{worker and '-'}{worker}.jsonl"
        self._open: TextIO | None = None
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
        write_whole(self.path / SETTINGS, json.dumps({"version": VERSION, **given}, indent=1) + "\n")
        drop_torn_line(self._file)

    def __enter__(self) -> ResultsFolder:
        self._open = self._file.open("a", encoding="utf-8")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def add(self, record: Kept) -> None:
        """Keep a record: it is in the file when this returns."""
        if self._open is None:
            raise ConfigurationError("a results folder takes records only while it is open: with folder: ...")
        self._open.write(json.dumps(record.to_json()) + "\n")
        self._open.flush()

    def _kept_settings(self) -> dict[str, Any] | None:
        file = self.path / SETTINGS
        if not file.exists():
            return None
        kept: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if kept.get("version") != VERSION:
            raise ConfigurationError(f"{file} has version {kept.get('version')}, not {VERSION}: use another folder")
        return kept


def _particles(values: Mapping[str, Any]) -> Particles:
    return Particles(**{name: tuple(of_each) for name, of_each in values.items()})


def read_records(path: str | Path) -> list[Record]:
    """All records of a folder, each once; a last line that was cut short by an interruption is left out.

    Raises:
        CheckpointError: a line that is not a record, elsewhere than at a file's end.
    """
    return read_kept(path, Record.from_json)


def read_kept(path: str | Path, from_json: Callable[[Mapping[str, Any]], KeptT]) -> list[KeptT]:
    """The same for lines of another kind; `from_json` raises `KeyError` or `TypeError` where a line is not of it."""
    found: dict[tuple[str, str, int], KeptT] = {}
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


def clear(path: str | Path) -> None:
    """Remove a folder's records, decisions and settings, and nothing else."""
    for file in [*Path(path).glob(RECORDS), *Path(path).glob(DECISIONS), Path(path, SETTINGS)]:
        file.unlink(missing_ok=True)


def _same(folder: Path, kept: Mapping[str, Any], given: Mapping[str, Any], what: str) -> None:
    differing = [name for name in sorted(kept.keys() | given.keys()) if kept.get(name) != given.get(name)]
    if differing:
        listed = "; ".join(f"{what}{name} was {kept.get(name)!r}, is {given.get(name)!r}" for name in differing)
        raise ConfigurationError(f"{folder} was made with other settings ({listed}): use them, or another folder")


def write_whole(file: Path, text: str) -> None:
    """Write a file that is there whole or not at all."""
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, file)


def drop_torn_line(file: Path) -> None:
    """Take away a last line that was cut short by an interruption."""
    if not file.exists():
        return
    whole = file.read_bytes()
    complete = whole[: whole.rfind(b"\n") + 1]
    if complete != whole:
        with file.open("r+b") as torn:
            torn.truncate(len(complete))
