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
OutsideLinks = Literal["copy", "refuse", "keep"]
GIT = ".git"
_FICLONE = 0x40049409
"""The ioctl of Linux that makes a file share another's blocks until either is written."""
_UNSUPPORTED = {errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY, errno.ENOSYS, errno.EPERM, errno.EBADF}
_REMEDY = "Remove it from the folder, or name it in ignore= to leave it out of the copies"


def copy_tree(
    source: Path,
    target: Path,
    *,
    outside_links: OutsideLinks = "keep",
    may_lack: Callable[[str], bool] = lambda name: False,
    base: Path | None = None,
) -> Method:
    """Copy a folder with its files, links, times and permissions, and return how files were copied.

    Links to places inside `source` are relative in the copy.

    Args:
        source: the folder.
        target: the copy.
        outside_links: a link that leads out of `source` is replaced by a copy of its target ("copy"), is an error
            ("refuse"), or leads to the same place ("keep"). Inside git repositories it is always replaced.
        may_lack: given a relative path, returns whether the copy may lack it if it cannot be copied.
        base: a folder that is never written; files that are equal there are hard links to it.

    Raises:
        ForkError: a file cannot be copied, such as a pipe, a socket, a device or a file without read permission.
    """
    copier = _TreeCopier(outside_links, may_lack, base)
    copier.copy(source, target)
    return copier.method


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder that is never written again, sharing its files by hard links."""
    shutil.copytree(source, target, symlinks=True, copy_function=link_or_copy)


def read_link(path: Path, root: Path) -> tuple[str, bool]:
    """Return the text that a link has in a copy of `root`, and whether it leads out of `root`."""
    text, parent, top = os.readlink(path), os.path.realpath(path.parent), os.path.realpath(root)
    head, tail = os.path.split(os.path.join(parent, text).rstrip("/"))
    place = os.path.realpath(os.path.join(head, tail))
    if tail not in ("", os.curdir, os.pardir):  # The place that the link names may be a link itself.
        place = os.path.join(os.path.realpath(head), tail)
    if not is_inside(place, top):
        return place, True
    stays = os.path.normpath(os.path.join(os.path.relpath(parent, top), text)).split(os.sep)[0] != os.pardir
    return text if stays and not os.path.isabs(text) else os.path.relpath(place, parent), False


def is_inside(path: str | Path, folder: str | Path) -> bool:
    """Return whether an absolute path is a folder or lies in it."""
    return Path(path).is_relative_to(folder)


def same_bytes(first: Path, second: Path) -> bool:
    """Return whether two files have the same content. Equal sizes and times are no proof."""
    with open(first, "rb") as one, open(second, "rb") as other:
        states = os.fstat(one.fileno()), os.fstat(other.fileno())
        if os.path.samestat(*states):
            return True
        if states[0].st_size != states[1].st_size:
            return False
        while content := one.read(1 << 20):
            if content != other.read(1 << 20):
                return False
    return True


def link_or_copy(source: str, target: str) -> str:
    """Create a hard link to a file that is never written again, or copy the file."""
    try:
        os.link(source, target)
    except OSError:  # The file system has no hard links, or the file has too many.
        shutil.copy2(source, target)
    return target


class _TreeCopier:
    """Copies files by reflink until the first that does not support it."""

    def __init__(self, outside_links: OutsideLinks, may_lack: Callable[[str], bool], base: Path | None) -> None:
        self.method: Method = "reflink" if sys.platform == "linux" else "copy"
        self._outside_links, self._may_lack, self._base = outside_links, may_lack, base
        self._roots: list[Path] = []
        """The source, and the outside folders that are being copied in place of links."""

    def copy(self, source: Path, target: Path, name: str = "") -> None:
        self._roots.append(Path(os.path.realpath(source)))
        self._folder(source, target, name)
        self._roots.pop()

    def _folder(self, source: Path, target: Path, name: str) -> None:
        target.mkdir(parents=not name)
        with os.scandir(source) as entries:
            for entry in entries:
                relative = f"{name}/{entry.name}" if name else entry.name
                try:
                    self._entry(entry, target / entry.name, relative)
                except FileNotFoundError:
                    if os.path.lexists(entry.path):
                        raise
                    # It was deleted meanwhile.
                except (OSError, ForkError) as error:
                    if self._may_lack(relative):
                        continue
                    if isinstance(error, ForkError):
                        raise
                    raise ForkError(f"cannot copy {entry.path}: {error.strerror or error}. {_REMEDY}") from error
        shutil.copystat(source, target)

    def _entry(self, entry: os.DirEntry[str], target: Path, name: str) -> None:
        if entry.is_symlink():
            self._link(Path(entry.path), target, name)
        elif entry.is_dir(follow_symlinks=False):
            self._folder(Path(entry.path), target, name)
        else:
            self._file(Path(entry.path), target, name)

    def _link(self, source: Path, target: Path, name: str) -> None:
        text, outside = read_link(source, self._roots[-1])
        of_git = GIT in Path(name).parts
        if not outside or (self._outside_links == "keep" and not of_git):
            os.symlink(text, target)
        elif self._outside_links == "refuse" and not of_git:
            raise ForkError(
                f'cannot copy {source}: the link leads out of the folder, to {text}. outside_links="copy" copies what '
                'it leads to, and outside_links="keep" shares it with the particles'
            )
        elif source.is_dir():
            real = source.resolve()
            if any(is_inside(real, root) or is_inside(root, real) for root in self._roots):
                raise ForkError(f"cannot copy {source}: the link leads in a circle, to {text}. {_REMEDY}")
            self.copy(real, target, name)
        elif source.exists():
            self._file(source.resolve(), target, name)
        # A link that leads nowhere has nothing to copy.

    def _file(self, source: Path, target: Path, name: str) -> None:
        if not source.is_file():  # Opening a pipe could wait for ever.
            if GIT in Path(name).parts:  # The socket of a daemon of git.
                return
            raise ForkError(f"cannot copy {source}: it is a pipe, a socket or a device. {_REMEDY}")
        if self._base is not None and _is_unchanged(source, self._base / name):
            link_or_copy(str(self._base / name), str(target))
            return
        if self.method == "reflink" and not _reflink(source, target):
            self.method = "copy"
        if self.method == "copy":
            _copy_content(source, target)
        shutil.copystat(source, target)


def _is_unchanged(file: Path, base: Path) -> bool:
    """Whether a hard link to `base` may replace a copy of the file: a link shares the time and permissions too."""
    try:
        states = [path.lstat() for path in (file, base)]
    except (FileNotFoundError, NotADirectoryError):
        return False
    one, other = ((state.st_mode, state.st_mtime_ns) for state in states)
    return one == other and same_bytes(file, base)


def _reflink(source: Path, target: Path) -> bool:
    import fcntl

    with open(source, "rb") as read, open(target, "wb") as written:
        try:
            fcntl.ioctl(written.fileno(), _FICLONE, read.fileno())
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            return os.fstat(read.fileno()).st_size == 0
    return True


def _copy_content(source: Path, target: Path) -> None:
    state = source.stat()
    if not hasattr(os, "SEEK_DATA") or state.st_blocks * 512 >= state.st_size:
        shutil.copyfile(source, target)
        return
    with open(source, "rb", buffering=0) as read, open(target, "wb", buffering=0) as written:
        end = 0
        while end < state.st_size:
            try:
                start = os.lseek(read.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    break  # The rest is a hole.
                raise
            end = os.lseek(read.fileno(), start, os.SEEK_HOLE)
            read.seek(start)
            written.seek(start)
            while start < end and (content := read.read(min(1 << 20, end - start))):
                written.write(content)
                start += len(content)
        written.truncate(state.st_size)
