"""Folders of copies and of saved states.

The copies of a run are removed with it, even if the process was killed. Snapshots remain until they are released or
removed by age.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

from filelock import BaseFileLock, FileLock, Timeout

from amc_agents.errors import WorldError
from amc_agents.files import storage_errors
from amc_agents.quoting import quoted

PREFIX = "amc-worlds-"
"""Beginning of the names of all workspaces."""
_LOCK = "in-use.lock"
_NO_REPOSITORY = "gitdir: no-repository-around-a-copy\n"
"""Ends git's search for a repository in the parents of a copy, where the user's own may be."""


class Workspace:
    """A temporary folder with one entry per copy of a world.

    The folder is removed with the last copy. A lock file marks it as in use. The operating system releases the lock if
    the process is killed, and the next workspace in the same place then removes the folder.

    Args:
        parent: folder for the workspace; None: the system's temporary folder.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self.parent = Path(tempfile.gettempdir()) if parent is None else parent
        remove_orphans(self.parent)
        with storage_errors(self.parent):
            self.path, self._lock = _create_locked(self.parent)
        self._numbers = count()
        self._in_use: set[Path] = set()

    def reserve(self) -> Path:
        """Return a new path in the workspace, for a copy that `release` removes."""
        path = self.path / f"{next(self._numbers)}"
        self._in_use.add(path)
        return path

    def release(self, path: Path) -> None:
        """Remove a copy, and the workspace with the last one. Safe to call twice."""
        if path not in self._in_use:
            return
        self._in_use.discard(path)
        remove(path)
        if not self._in_use:
            self._lock.release()
            remove(self.path)


def remove_orphans(parent: Path) -> list[Path]:
    """Remove workspaces of processes that no longer run, and return their paths."""
    removed = []
    for folder in parent.glob(f"{PREFIX}*"):
        lock = FileLock(folder / _LOCK)
        try:
            if not (folder / _LOCK).exists():
                continue  # Another process is creating it.
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            continue
        # It stays locked: its process may have created it just now, and be about to lock it.
        remove(folder)
        lock.release()
        remove(folder)  # Windows keeps a locked file.
        removed.append(folder)
    return removed


def _create_locked(parent: Path) -> tuple[Path, BaseFileLock]:
    """Create a workspace and lock it, again if another process has taken it for an orphan in between."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = FileLock(path / _LOCK)
        with suppress(FileNotFoundError):
            lock.acquire()
            if (path / _LOCK).exists():
                if any((parent / ".git").exists() for parent in path.resolve().parents):
                    (path / ".git").write_text(_NO_REPOSITORY)
                return path, lock
            lock.release()


def remove(path: Path) -> None:
    """Remove a file or a folder, read-only ones included."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=_make_writable_and_retry)
    else:
        path.unlink(missing_ok=True)


def _make_writable_and_retry(function: object, path: str, _: object) -> None:
    # Package managers and git make files and folders read-only.
    try:
        os.chmod(Path(path).parent, 0o700)
        if Path(path).is_symlink():  # The permissions of its target are not ours to change.
            os.unlink(path)
            return
        os.chmod(path, 0o700)
        if Path(path).is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    except OSError:
        pass


SNAPSHOT_PREFIX = "amc-snapshot-"
"""Beginning of the names of all snapshots, which then contain the time of creation and a random number."""
_SNAPSHOT_NAME = re.compile(rf"{SNAPSHOT_PREFIX}(\d+)-[0-9a-f]{{16}}")


class Snapshots:
    """The snapshots in a folder, which is also the parent of the copies: unchanged files are shared by hard links.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, write: Callable[[Path], object]) -> dict[str, Any]:
        """Create a snapshot and return a reference to it.

        Args:
            write: writes the state to the new folder that it is given.

        Raises:
            StorageError: the folder cannot be written.
        """
        path = self._folder / f"{SNAPSHOT_PREFIX}{int(time.time())}-{secrets.token_hex(8)}"
        with storage_errors(path):
            path.mkdir(mode=0o700)
            try:
                write(path)
            except BaseException:
                remove(path)
                raise
        return {"name": path.name, "files": _count_files(path)}

    def find(self, reference: Any) -> Path:
        """Return the folder of a snapshot.

        Raises:
            WorldError: the snapshot does not exist, or is damaged.
        """
        path = self._path(reference)
        if not path.is_dir():
            raise WorldError(
                f"the snapshot {path.name} does not exist in {self._folder}: it was released (an answered run releases "
                "those of its points), removed with the temporary files, or saved with another workspace="
            )
        n_files = _count_files(path)
        if n_files != reference.get("files"):
            raise WorldError(f"the snapshot {path} is damaged: {n_files} files of {reference.get('files')} are left")
        return path

    def release(self, reference: Any) -> None:
        """Delete a snapshot. Safe to call twice."""
        path = self._path(reference)
        if path.exists():
            remove(path)

    def _path(self, reference: Any) -> Path:
        name = reference.get("name") if isinstance(reference, dict) else None
        if not isinstance(name, str) or not _SNAPSHOT_NAME.fullmatch(name):
            raise WorldError(f"expected a reference that snapshot() returned, got {quoted(reference, 100)}")
        return self._folder / name


def remove_snapshots(workspace: str | Path | None = None, *, older_than: timedelta) -> list[Path]:
    """Remove abandoned snapshots of folders and SQLite databases, such as those of deleted threads.

    Nothing else removes a snapshot that its run or conversation has not released. Choose an age that no resumed run
    exceeds.

    Args:
        workspace: the worlds' `workspace`; None: the temporary folder.
        older_than: minimum age. Zero removes all.

    Returns:
        The removed folders.
    """
    removed = [path for path, age in snapshots_in(workspace) if age >= older_than]
    for path in removed:
        remove(path)
    return removed


def snapshots_in(workspace: str | Path | None = None) -> list[tuple[Path, timedelta]]:
    """Return the snapshots in a folder with their ages, the oldest first.

    Args:
        workspace: the worlds' `workspace`; None: the temporary folder.
    """
    folder = Path(tempfile.gettempdir()) if workspace is None else Path(workspace)
    matches = [(path, _SNAPSHOT_NAME.fullmatch(path.name)) for path in folder.glob(f"{SNAPSHOT_PREFIX}*")]
    ages = [(path, timedelta(seconds=time.time() - int(match[1]))) for path, match in matches if match]
    return sorted(ages, key=lambda found: found[1], reverse=True)


def _count_files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))
