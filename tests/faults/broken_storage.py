"""A storage that fails at the k-th change of a folder: the disk is full, a folder is read-only, a drive is broken.

Python reports every opening, renaming and creation of files to audit hooks, whoever asks for it; a hook may refuse.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FULL, READ_ONLY, DENIED, QUOTA, BROKEN = errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO


@dataclass
class Storage:
    """Counts the changes in a folder, and refuses some."""

    folder: Path
    fails_with: int = 0
    first: int = 0
    """Number of changes that are not refused."""
    changes: int = 0

    def asked(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not (path := _changed(event, arguments)) or not path.startswith(str(self.folder)):
            return
        self.changes += 1
        if self.fails_with and self.changes > self.first:
            self.refuse(path)

    def refuse(self, path: str) -> None:
        """Refuse a change."""
        raise OSError(self.fails_with, os.strerror(self.fails_with), path)


def _changed(event: str, arguments: tuple[Any, ...]) -> str:
    """The path that an event changes, or ""."""
    if event == "open":
        path, _, flags = arguments
        return os.fspath(path) if isinstance(path, str) and flags & _WRITES else ""
    return os.fspath(arguments[0]) if event in _CHANGES and isinstance(arguments[0], str | Path) else ""


@contextmanager
def storage(folder: Path, fails_with: int = 0, first: int = 0, kind: type[Storage] = Storage) -> Iterator[Storage]:
    """Watch a folder, and let its changes fail after the `first` ones."""
    global _watching, _hooked
    if not _hooked:
        sys.addaudithook(_hook)
        _hooked = True
    _watching = kind(folder, fails_with, first)
    try:
        yield _watching
    finally:
        _watching = None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching is not None:
        _watching.asked(event, arguments)


_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_CHANGES = ("os.rename", "os.mkdir", "os.truncate", "os.link", "os.symlink", "sqlite3.connect")
_hooked = False
_watching: Storage | None = None
