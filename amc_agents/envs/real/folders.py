"""Compare folders, and replace the changed files of a folder."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from amc_agents.envs.real.changes import FileChange

STAGING = ".amc-apply"
"""Folder in the original that holds new files until all of them can be moved to their places."""


def files_in(folder: Path) -> set[str]:
    """Return the relative paths of all files and links in a folder."""
    return {path.relative_to(folder).as_posix() for path in _walk(folder)}


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from (Path(parent) / name for name in (*names, *links))


def same(first: Path, second: Path) -> bool:
    """True if two paths have the same content, or neither exists. Equal sizes and times count as equal content."""
    kinds = [_kind(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        return False
    if kinds[0] == stat.S_IFLNK:
        return os.readlink(first) == os.readlink(second)
    return kinds[0] is None or filecmp.cmp(first, second, shallow=True)


def _kind(path: Path) -> int | None:
    """The type of a file; None for a folder, and if nothing exists."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
        return None if kind == stat.S_IFDIR else kind
    except (FileNotFoundError, NotADirectoryError):
        return None


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text file; a link is one line; a missing file has none."""
    if path.is_symlink():
        return [f"link to {os.readlink(path)}\n"]
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def replace_files(original: Path, changed: Path, changes: Sequence[FileChange]) -> None:
    """Move staged copies of the changed files to their places; undo everything if one cannot be moved."""
    staging = original / STAGING
    new, old = staging / "new", staging / "old"
    shutil.rmtree(staging, ignore_errors=True)
    moves: list[tuple[Path, Path]] = []
    try:
        for change in changes:
            if change.kind != "deleted":
                _copy(changed / change.path, new / change.path)
        for change in changes:
            if change.kind != "added":
                _move(original / change.path, old / change.path, moves)
                _remove_empty_folders(original, change.path, unless_in=changed)
        for change in changes:
            if change.kind != "deleted":
                _move(new / change.path, original / change.path, moves)
    except BaseException:
        for source, target in reversed(moves):
            _move(target, source, [])
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(source: Path, target: Path, moves: list[tuple[Path, Path]]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)
    moves.append((source, target))


def _remove_empty_folders(original: Path, name: str, *, unless_in: Path) -> None:
    for parent in Path(name).parents[:-1]:
        if (unless_in / parent).is_dir() or any((original / parent).iterdir()):
            return
        (original / parent).rmdir()


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target, follow_symlinks=False)
