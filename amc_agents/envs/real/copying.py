"""Copy folders, sharing the files' blocks where the file system supports it."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from amc_agents.errors import ForkError

Method = Literal["reflink", "copy"]
_FICLONE = 0x40049409
"""The ioctl of Linux that makes a file share another's blocks until either is written."""
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.EBADF}


def copy_tree(source: Path, target: Path) -> Method:
    """Copy a folder with its files, links, times and permissions, and return how files were copied.

    Raises:
        ForkError: a file cannot be copied, such as a socket or a file without read permission.
    """
    copier = _Copier()
    _copy_with(copier, source, target)
    return copier.method


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder that is never written again, sharing its files by hard links."""
    shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)


def save_tree(source: Path, base: Path, target: Path) -> None:
    """Copy a folder, sharing the files that are unchanged from `base`, which is never written, by hard links.

    A file counts as unchanged if its size, time and permissions are equal.

    Raises:
        ForkError: a file cannot be copied.
    """

    def save(name: str, copied: str) -> None:
        unchanged = base / Path(name).relative_to(source)
        if not _looks_equal(Path(name), unchanged):
            copier(name, copied)
        else:
            link_or_copy(str(unchanged), copied)

    copier = _Copier()
    _copy_with(save, source, target)


class _Copier:
    """Copies files by reflink until the first that does not support it."""

    def __init__(self) -> None:
        self.method: Method = "reflink" if sys.platform == "linux" else "copy"

    def __call__(self, source: str, target: str) -> str:
        if self.method == "reflink" and not _reflink(source, target):
            self.method = "copy"
        if self.method == "copy":
            shutil.copyfile(source, target)
        shutil.copystat(source, target)
        return target


def _copy_with(copy: Callable[[str, str], object], source: Path, target: Path) -> None:
    try:
        shutil.copytree(source, target, symlinks=True, copy_function=copy)
    except shutil.Error as error:
        path, _, reason = error.args[0][0]
        raise ForkError(f"cannot copy {path}: {reason}. Remove it from the folder, or name it in ignore=") from error


def _looks_equal(first: Path, second: Path) -> bool:
    try:
        states = [path.lstat() for path in (first, second)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    one, other = ((state.st_mode, state.st_size, state.st_mtime_ns) for state in states)
    return one == other


def link_or_copy(source: str, target: str) -> str:
    """Create a hard link to a file that is never written again, or copy the file."""
    try:
        os.link(source, target)
    except OSError:  # The file system has no hard links, or the file has too many.
        shutil.copy2(source, target)
    return target


def _reflink(source: str, target: str) -> bool:
    import fcntl

    with open(source, "rb") as read, open(target, "wb") as written:
        try:
            fcntl.ioctl(written.fileno(), _FICLONE, read.fileno())
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return os.fstat(read.fileno()).st_size == 0
    return True
