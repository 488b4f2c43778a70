"""Runs in the user's state folder, outside of any repository: records, copies, and their removal.

STATE/ID/run.json     the record, replaced atomically
STATE/ID/lock         held by the process that runs
STATE/ID/base/NAME    the repository's files when the run began
STATE/ID/K/NAME       copy K; beside it its output, HOME, and the former versions of protected files
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from amc_agents.envs.real.changes import FileChange
from amc_agents.envs.real.three_way import ThreeWay
from amc_agents.envs.real.workspace import remove
from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import read_json_object, replace_file, storage_errors
from amc_agents.operations.code.copies import Repository
from amc_agents.operations.code.processes import end_processes
from amc_agents.quoting import excerpt, quoted

_RECORD, _LOCK, VERSION = "run.json", "lock", 2


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What the agent of a copy did."""

    number: int
    """1 for the first copy."""
    state: str = "waiting"
    """"waiting", "running", "checking", "passed", "failed" (the check), "stopped" or "broken"."""
    status: int | None = None
    """Exit status of the agent."""
    seconds: float = 0.0
    """How long the agent ran."""
    changes: tuple[FileChange, ...] = ()
    """Changed files, without protected ones."""
    lines: int = 0
    """Number of lines that were added and removed."""
    left_out: tuple[str, ...] = ()
    """Protected files that the agent changed; they had the user's version in the check, and do not come back."""
    note: str = ""
    """What else happened, such as the reason for "stopped" or "broken"."""


@dataclass(frozen=True, slots=True)
class CodeRun:
    """A run: N copies, and which of them won."""

    id: str
    repository: Repository
    command: tuple[str, ...]
    check: str
    copies: tuple[CopyResult, ...]
    folder: Path
    """Where the copies are."""
    state: str = "running"
    """"running", "won", "no winner", "interrupted" or "failed"."""
    winner: int | None = None
    """Number of the best copy; None without one."""
    applied: str = ""
    """Where the winner's changes went: "working tree", or nothing yet."""
    notes: tuple[str, ...] = ()
    """What the user should know."""

    def copy(self, number: int) -> CopyResult:
        """The result of a copy. Raises `ConfigurationError`: there is no such copy."""
        for copy in self.copies:
            if copy.number == number:
                return copy
        raise ConfigurationError(f"run {self.id} has copies 1 to {len(self.copies)}, got {number}")

    def chosen(self, number: int | None) -> int:
        """The number that is given, or the winner's. Raises `ConfigurationError`: there is neither."""
        if number is not None:
            return number
        if self.winner is None:
            raise ConfigurationError(f"run {self.id} has no winner: choose a copy, 1 to {len(self.copies)}")
        return self.winner

    def place(self, number: int) -> Path:
        """The folder of a copy's files."""
        return self.folder / str(number) / self.repository.top.name

    @property
    def base(self) -> Path:
        """The repository's files when the run began."""
        return self.folder / "base" / self.repository.top.name

    def three_way(self, number: int) -> ThreeWay:
        """The repository, its former state, and a copy."""
        return ThreeWay(self.repository.top, self.base, self.place(number), scratch=self.folder)

    def diff(self, number: int) -> str:
        """The changes of a copy as a unified diff."""
        three_way = self.three_way(number)
        return "".join(three_way.diff(change.path) for change in self.copy(number).changes)

    def with_copy(self, copy: CopyResult) -> CodeRun:
        """This run with the new result of a copy."""
        return replace(self, copies=tuple(copy if each.number == copy.number else each for each in self.copies))

    def as_plain(self) -> dict[str, Any]:
        """The record, for JSON."""
        plain = asdict(self)
        repository = {**plain["repository"], "top": str(self.repository.top), "inside": str(self.repository.inside)}
        return {**plain, "version": VERSION, "folder": str(self.folder), "repository": repository}

    def save(self) -> None:
        """Replace the record."""
        replace_file(self.folder / _RECORD, json.dumps(self.as_plain(), indent=1))


def state_folder() -> Path:
    """The folder of all runs: AMC_CODE_STATE, or `amc-agents/code` in the user's state folder."""
    if chosen := os.environ.get("AMC_CODE_STATE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "amc-agents" / "code"


@contextmanager
def new_run(state: Path, repository: Repository) -> Iterator[Path]:
    """Create the folder of a run, and hold its lock while the block runs.

    Raises:
        ConfigurationError: the folder would lie in the repository.
        StorageError: the folder cannot be created.
    """
    if state.resolve().is_relative_to(repository.top.resolve()):
        raise ConfigurationError(
            f"the copies would lie in the repository, in {state}: set AMC_CODE_STATE to a folder outside of it"
        )
    with storage_errors(state):
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = state / f"{datetime.now():%m%d-%H%M}-{secrets.token_hex(2)}"
        folder.mkdir(mode=0o700)
        (folder / "base").mkdir()
    with FileLock(folder / _LOCK):
        yield folder


def runs_in(state: Path, top: Path | None = None) -> list[CodeRun]:
    """The runs in a state folder, the newest last, or those of a repository."""
    folders = [file.parent for file in state.glob(f"*/{_RECORD}")]
    runs = [read_run(folder) for folder in sorted(folders, key=lambda folder: (folder / _LOCK).stat().st_mtime_ns)]
    return [run for run in runs if top is None or run.repository.top == top]


def find_run(state: Path, name: str | None, top: Path | None) -> CodeRun:
    """Find a run by the beginning of its id, or the newest of a repository.

    Raises:
        ConfigurationError: there is none, or several.
    """
    runs = runs_in(state, None if name else top)
    found = [run for run in runs if run.id.startswith(name)] if name else runs[-1:]
    if len(found) == 1:
        return found[0]
    if found:
        raise ConfigurationError(f"{name} is the beginning of several runs: {', '.join(run.id for run in found)}")
    known = ", ".join(run.id for run in runs_in(state)[-8:]) or "there are no runs"
    raise ConfigurationError(f"no run {name}: {known}" if name else f"no run of {top}: {known}")


def read_run(folder: Path) -> CodeRun:
    """Read the record of a run. A run whose process has died is "interrupted".

    Raises:
        CheckpointError: the record cannot be read, or is of another version.
    """
    remedy = "remove it with `amc code clean`"
    record = read_json_object(folder / _RECORD, remedy=remedy)
    try:
        if (version := record.pop("version")) != VERSION:
            raise ValueError(f"version {quoted(version)}")
        where = record.pop("repository")
        copies = tuple(
            CopyResult(**{**copy, "changes": tuple(FileChange(**change) for change in copy["changes"])})
            for copy in record.pop("copies")
        )
        repository = Repository(Path(where["top"]), where["git"], where["head"], Path(where["inside"]))
        run = CodeRun(**{**record, "copies": copies, "repository": repository, "folder": folder})
    except (KeyError, TypeError, ValueError) as error:
        cause = excerpt(f"{type(error).__name__}: {error}", 150)
        raise CheckpointError(
            f"{folder / _RECORD} is no record of a run of version {VERSION} ({cause}): {remedy}"
        ) from error
    return replace(run, state="interrupted") if run.state == "running" and not is_running(folder) else run


def is_running(folder: Path) -> bool:
    """Whether a process holds the lock of a run."""
    lock = FileLock(folder / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


def clean(state: Path, name: str | None = None) -> tuple[list[str], list[str]]:
    """Remove runs that have ended, with processes that they have left; return the ids of removed and of running ones.

    Args:
        state: the state folder.
        name: beginning of the id of the only run to remove.
    """
    removed, running = [], []
    for folder in sorted(state.glob(f"{name or ''}*")):
        if not folder.is_dir():
            continue
        if is_running(folder):
            running.append(folder.name)
            continue
        end_processes(folder, of_run=True)
        # First the record: a half-removed run is not listed.
        (folder / _RECORD).unlink(missing_ok=True)
        with storage_errors(folder):
            remove(folder)
        removed.append(folder.name)
    with suppress(OSError):
        state.rmdir()  # Not if something is left.
    return removed, running
