"""Temporary folders for the copies of a run, which are removed even if the process was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from itertools import count
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from amc_agents.files import storage_errors

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
