"""A folder per particle, for agents that read and write files."""

from __future__ import annotations

import asyncio
import fnmatch
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

from amc_agents.envs.real.changes import FileChange
from amc_agents.envs.real.copying import GIT, Method, OutsideLinks, is_inside, link_tree
from amc_agents.envs.real.folders import copy_file, files_in, locked, same
from amc_agents.envs.real.repositories import (
    check_apart,
    copy_apart,
    ignored_by_git,
    refuse_variables,
    repositories_in,
)
from amc_agents.envs.real.three_way import ThreeWay
from amc_agents.envs.real.workspace import Snapshots, Workspace, remove
from amc_agents.errors import ConfigurationError, EnvironmentStateError
from amc_agents.files import storage_errors
from amc_agents.quoting import quoted


class DirectoryFork:
    """A copy of a folder for each particle (`Forkable` and `Restorable`).

    A tool gets its particle's folder from `current_environment(DirectoryFork).path`. The original is read when the run
    begins and written by `apply` alone. File systems with reflinks (btrfs, XFS) share unchanged blocks among copies.
    Snapshots are in `workspace` until they are released; `remove_snapshots` removes abandoned snapshots by age.

    Git repositories in the folder, worktrees and submodules included, become repositories of the copy; hooks do not
    run there. What particles commit stays in their copies: `apply` writes files of the working tree.

    Args:
        path: the original folder.
        ignore: patterns (as of `fnmatch`) of relative paths that `changes`, `diff` and `apply` leave out besides `.git`
            and what git ignores, such as `"*.pyc"` or `"build/*"`. They are copied to the particles nevertheless, if
            they can be copied.
        workspace: folder for the copies; reflinks require the file system of `path`. None: the temporary folder.
        outside_links: what becomes of links that lead out of the folder: "copy" replaces them by copies of their
            targets, "refuse" is an error, and "keep" shares the targets, for those that nobody writes. Links to places
            inside lead into the copy.

    Raises:
        ConfigurationError: `path` is not a folder, contains the workspace, or a variable such as `GIT_DIR` leads git to
            one repository in all folders.
        ForkError: the folder contains a pipe, a socket, a device, or a link that is refused.
        StorageError: the workspace cannot be written.
        WorldError: an interrupted `apply` to this folder cannot be completed.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        ignore: Sequence[str] = (),
        workspace: str | Path | None = None,
        outside_links: OutsideLinks = "copy",
    ) -> None:
        self.original = Path(path).resolve()
        if not self.original.is_dir():
            raise ConfigurationError(f"DirectoryFork expects a folder, got {quoted(str(path), 200)}")
        if outside_links not in get_args(OutsideLinks):
            raise ConfigurationError(
                f"outside_links must be one of {', '.join(get_args(OutsideLinks))}, got {quoted(outside_links, 80)}"
            )
        if is_inside(place := Path(workspace or tempfile.gettempdir()).resolve(), self.original):
            raise ConfigurationError(
                f"{self.original} contains the workspace {place}, so that its copies would contain themselves: choose "
                "another workspace="
            )
        refuse_variables()
        self._ignore = tuple(ignore)
        self._workspace = Workspace(None if workspace is None else Path(workspace))
        self._base = _Shared(self._workspace, self._workspace.reserve())
        self._path: Path | None = self._workspace.reserve()
        try:
            with locked(self.original, shared=True):
                self.method: Method = copy_apart(
                    self.original, self._base.path, outside_links=outside_links, may_lack=self._is_left_out
                )
            check_apart(self._base.path)
            copy_apart(self._base.path, self._path)
        except BaseException:
            self._workspace.release(self._path)
            self._base.leave()
            raise

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
            await asyncio.to_thread(copy_apart, self.path, target, may_lack=self._is_left_out)
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
        """The particle's changed files, sorted by path, without `.git` and what git ignores.

        Contents are compared. Empty folders and permissions are not.
        """
        before, after = files_in(self._base.path), files_in(self.path)
        repositories = repositories_in(self.path)
        changed = [
            name
            for name in sorted(before | after)
            if GIT not in Path(name).parts
            and not repositories.intersection(Path(name).parents)
            and not self._is_left_out(name)
            and not same(self._base.path, self.path, name)
        ]
        ignored = ignored_by_git(self.path, changed, self.original)
        return [
            FileChange(name, "added" if name not in before else "deleted" if name not in after else "modified")
            for name in changed
            if name not in ignored
        ]

    def diff(self) -> str:
        """The particle's changes as a unified diff; files that are not UTF-8 text are only named."""
        return "".join(self._three_way.diff(change.path) for change in self.changes())

    def apply(self) -> list[FileChange]:
        """Write the particle's changes to the original folder, and return them.

        A file that has also changed in the original since the run began is merged by `git merge-file`. If the process
        is killed, the next `apply` or `DirectoryFork` of the same folder completes the changes.

        Raises:
            Conflict: a file that the particle changed has also changed in the original, and cannot be merged.
            StorageError: the original cannot be written. Nothing was changed.
            WorldError: another process applies changes to the folder, or an interrupted one cannot be completed.
        """
        with storage_errors(self.original):
            changes = self.changes()
        self._three_way.apply(changes)
        return changes

    def conflicts(self) -> list[str]:
        """Paths that the particle changed and that have also changed in the original, so that they cannot be merged."""
        return self._three_way.conflicts(self.changes())

    @property
    def _three_way(self) -> ThreeWay:
        return ThreeWay(self.original, self._base.path, self.path, scratch=self._workspace.path)

    def _is_left_out(self, name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in self._ignore)

    def _save(self, path: Path, saved: Path) -> None:
        link_tree(self._base.path, saved / "base")
        copy_apart(path, saved / "state", may_lack=self._is_left_out, base=self._base.path)

    def _restore(self, snapshot: Any) -> None:
        saved = Snapshots(self._workspace.parent).find(snapshot)
        old, base, path = self.path, _Shared(self._workspace, self._workspace.reserve()), self._workspace.reserve()
        try:
            link_tree(saved / "base", base.path)
            copy_apart(saved / "state", path)
        except BaseException:
            self._workspace.release(path)
            base.leave()
            raise
        previous, self._base, self._path = self._base, base, path
        self._workspace.release(old)
        previous.leave()
        applied = [change for change in self.changes() if same(path, self.original, change.path)]
        for change in applied:
            remove(base.path / change.path)
        for change in applied:
            if change.kind != "deleted":
                copy_file(path, base.path, change.path)


class _Shared:
    """The state of the original at the beginning of the run, shared by all forks."""

    def __init__(self, workspace: Workspace, path: Path) -> None:
        self.path, self.users = path, 1
        self._workspace = workspace

    def leave(self) -> None:
        self.users -= 1
        if not self.users:
            self._workspace.release(self.path)
