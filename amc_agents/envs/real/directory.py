"""A folder per particle, for agents that read and write files."""

from __future__ import annotations

import asyncio
import difflib
import filecmp
import fnmatch
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from amc_agents.envs.real.changes import Conflict, FileChange
from amc_agents.envs.real.copying import Method, copy_tree
from amc_agents.envs.real.workspace import Workspace
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.files import storage_errors

STAGING = ".amc-apply"
"""Folder in the original that holds new files until all of them can be moved to their places."""


class DirectoryFork:
    """A copy of a folder for each particle (a `Forkable`).

    A tool gets its particle's folder from `current_environment(DirectoryFork).path`. The original is read when the run
    begins and written by `apply` alone. File systems with reflinks (btrfs, XFS) share unchanged blocks among copies.

    Args:
        path: the original folder.
        ignore: patterns (as of `fnmatch`) of relative paths that `changes`, `diff` and `apply` leave out, such as
            `"*.pyc"` or `"build/*"`. They are copied to the particles nevertheless.
        workspace: folder for the copies; reflinks require the file system of `path`. None: the temporary folder.

    Raises:
        ConfigurationError: `path` is not a folder.
        StorageError: the workspace cannot be written.
    """

    def __init__(self, path: str | Path, *, ignore: Sequence[str] = (), workspace: str | Path | None = None) -> None:
        self.original = Path(path).resolve()
        if not self.original.is_dir():
            raise ConfigurationError(f"DirectoryFork expects a folder, got {str(path)!r}")
        self._ignore = tuple(ignore)
        self._workspace = Workspace(None if workspace is None else Path(workspace))
        self._base = _Shared(self._workspace, self._workspace.reserve())
        self.method: Method = copy_tree(self.original, self._base.path)
        self._path: Path | None = self._workspace.reserve()
        copy_tree(self._base.path, self._path)

    @property
    def path(self) -> Path:
        """The particle's own folder.

        Raises:
            EnvironmentStateError: the world is closed.
        """
        if self._path is None:
            raise EnvironmentStateError("this DirectoryFork is closed: its folder no longer exists")
        return self._path

    async def fork(self, seed: int) -> DirectoryFork:
        """Copy the particle's folder. The seed is unused, since a folder has no randomness.

        Raises:
            ForkError: the folder holds something that cannot be copied, such as a socket.
        """
        twin = object.__new__(DirectoryFork)
        twin.original, twin._ignore, twin.method = self.original, self._ignore, self.method
        twin._workspace, twin._base, twin._path = self._workspace, self._base, None
        target = self._workspace.reserve()
        try:
            await asyncio.to_thread(copy_tree, self.path, target)
        except BaseException:
            self._workspace.release(target)
            raise
        twin._path = target
        self._base.users += 1
        return twin

    async def close(self) -> None:
        """Remove the particle's folder; safe to call twice."""
        path, self._path = self._path, None
        if path is not None:
            await asyncio.to_thread(self._workspace.release, path)
            await asyncio.to_thread(self._base.leave)

    def changes(self) -> list[FileChange]:
        """The particle's changed files, sorted by path. Empty folders and permissions are not compared."""
        before, after = _files(self._base.path), _files(self.path)
        kinds = {
            name: "added" if name not in before else "deleted" if name not in after else "modified"
            for name in sorted(before | after)
            if not self._ignored(name) and not _same(self._base.path / name, self.path / name)
        }
        return [FileChange(name, kind) for name, kind in kinds.items()]  # type: ignore[arg-type]

    def diff(self) -> str:
        """The particle's changes as a unified diff; files that are not UTF-8 text are only named."""
        return "".join(self._diff_of(change.path) for change in self.changes())

    def apply(self) -> list[FileChange]:
        """Write the particle's changes to the original folder, and return them.

        All new files are first written to a folder in the original, and then moved to their places. If a move fails,
        the moves before it are undone.

        Raises:
            Conflict: a file that the particle changed has also changed in the original since the run began.
            StorageError: the original cannot be written.
        """
        changes = self.changes()
        conflicts = [
            change.path for change in changes if not _same(self._base.path / change.path, self.original / change.path)
        ]
        if conflicts:
            raise Conflict(str(self.original), conflicts)
        with storage_errors(self.original):
            _replace_files(self.original, self.path, changes)
        return changes

    def _ignored(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in self._ignore)

    def _diff_of(self, name: str) -> str:
        try:
            before, after = (_lines(folder / name) for folder in (self._base.path, self.path))
        except UnicodeDecodeError:
            return f"Binary file {name} differs\n"
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


class _Shared:
    """The state of the original at the beginning of the run, shared by all forks."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        self.path, self.users = path, 1
        self._workspace = workspace

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            self._workspace.release(self.path)


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in _walk(folder)}


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from (Path(parent) / name for name in (*names, *links))


def _same(first: Path, second: Path) -> bool:
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


def _lines(path: Path) -> list[str]:
    if path.is_symlink():
        return [f"link to {os.readlink(path)}\n"]
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []


def _replace_files(original: Path, changed: Path, changes: Sequence[FileChange]) -> None:
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
