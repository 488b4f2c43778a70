"""A folder per particle, for agents that read and write files."""

from __future__ import annotations

import asyncio
import difflib
import fnmatch
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from amc_agents.envs.real.changes import Conflict, FileChange
from amc_agents.envs.real.copying import Method, copy_tree, link_tree, save_tree
from amc_agents.envs.real.folders import files_in, lines_of, replace_files, same
from amc_agents.envs.real.snapshots import Snapshots
from amc_agents.envs.real.workspace import Workspace
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.files import storage_errors
from amc_agents.quoting import quoted


class DirectoryFork:
    """A copy of a folder for each particle (`Forkable` and `Restorable`).

    A tool gets its particle's folder from `current_environment(DirectoryFork).path`. The original is read when the run
    begins and written by `apply` alone. File systems with reflinks (btrfs, XFS) share unchanged blocks among copies.
    Snapshots are in `workspace` until they are released; `remove_snapshots` removes abandoned snapshots by age.

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
            raise ConfigurationError(f"DirectoryFork expects a folder, got {quoted(str(path), 200)}")
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

    @property
    def run_note(self) -> str:
        """How files are copied, for the notes of a run."""
        if self.method == "reflink":
            return "DirectoryFork: copies share blocks with the original (reflinks)"
        return "DirectoryFork: each fork copies all files, because the workspace's file system has no reflinks"

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

    async def snapshot(self) -> dict[str, Any]:
        """Save the particle's folder, and the original's state at the beginning of the run, in the workspace folder.

        Unchanged files are hard links, so that a snapshot takes the space of the changed files.

        Raises:
            ForkError: the folder holds something that cannot be copied, such as a socket.
            StorageError: the workspace cannot be written.
        """
        return await asyncio.to_thread(Snapshots(self._workspace.parent).save, partial(self._save, self.path))

    async def restore(self, snapshot: Any) -> None:
        """Replace the particle's folder by a saved folder.

        Saved changes that the original has received meanwhile, by `apply`, no longer count as changes.

        Raises:
            WorldError: the snapshot is missing or damaged.
        """
        await asyncio.to_thread(self._restore, snapshot)

    async def release(self, snapshot: Any) -> None:
        """Delete a snapshot; safe to call twice."""
        await asyncio.to_thread(Snapshots(self._workspace.parent).release, snapshot)

    def changes(self) -> list[FileChange]:
        """The particle's changed files, sorted by path. Empty folders and permissions are not compared."""
        before, after = files_in(self._base.path), files_in(self.path)
        kinds = {
            name: "added" if name not in before else "deleted" if name not in after else "modified"
            for name in sorted(before | after)
            if not self._ignored(name) and not same(self._base.path / name, self.path / name)
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
        conflicts = self._conflicting(changes)
        if conflicts:
            raise Conflict(str(self.original), conflicts)
        pending = [change for change in changes if not self._applied(change)]
        with storage_errors(self.original):
            replace_files(self.original, self.path, pending)
        return changes

    def conflicts(self) -> list[str]:
        """Paths that the particle changed and that have also changed in the original, to something else."""
        return self._conflicting(self.changes())

    def _conflicting(self, changes: Sequence[FileChange]) -> list[str]:
        return [
            change.path
            for change in changes
            if not same(self._base.path / change.path, self.original / change.path) and not self._applied(change)
        ]

    def _applied(self, change: FileChange) -> bool:
        """Whether the original has the change already."""
        return same(self.path / change.path, self.original / change.path)

    def _ignored(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in self._ignore)

    def _diff_of(self, name: str) -> str:
        try:
            before, after = (lines_of(folder / name) for folder in (self._base.path, self.path))
        except UnicodeDecodeError:
            return f"Binary file {name} differs\n"
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def _save(self, path: Path, saved: Path) -> None:
        link_tree(self._base.path, saved / "base")
        save_tree(path, self._base.path, saved / "state")

    def _restore(self, snapshot: Any) -> None:
        saved = Snapshots(self._workspace.parent).find(snapshot)
        old, base, path = self.path, _Shared(self._workspace, self._workspace.reserve()), self._workspace.reserve()
        try:
            link_tree(saved / "base", base.path)
            copy_tree(saved / "state", path)
        except BaseException:
            self._workspace.release(path)
            base.leave()
            raise
        previous, self._base, self._path = self._base, base, path
        self._workspace.release(old)
        previous.leave()
        replace_files(base.path, path, [change for change in self.changes() if self._applied(change)])


class _Shared:
    """The state of the original at the beginning of the run, shared by all forks."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        self.path, self.users = path, 1
        self._workspace = workspace

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            self._workspace.release(self.path)
