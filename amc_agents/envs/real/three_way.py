"""Bring the changes of a copied folder back to the original, without overwriting what changed there meanwhile."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from amc_agents.envs.real.changes import Conflict, FileChange
from amc_agents.envs.real.folders import copy_file, digest, files_in, lines_of, locked, replace_files, same
from amc_agents.envs.real.repositories import merged_text
from amc_agents.files import storage_errors


@dataclass(frozen=True, slots=True)
class ThreeWay:
    """A folder, its state when it was copied, and the changed copy. Contents are compared byte by byte."""

    original: Path
    """The folder that receives the changes."""
    base: Path
    """The original's state when it was copied; never written."""
    changed: Path
    """The changed copy."""
    scratch: Path
    """Folder for merged files, outside of the original."""

    def apply(self, changes: Sequence[FileChange]) -> None:
        """Write changes to the original, merging files that changed there too; after an error nothing is changed.

        Raises:
            Conflict: a file has also changed in the original, and cannot be merged.
            StorageError: the original cannot be written.
            WorldError: another process applies changes to the folder, or an interrupted one cannot be completed.
        """
        with storage_errors(self.original), locked(self.original), self._folder_for_merges() as merged:
            before = {change.path: digest(self.original / change.path) for change in changes}
            changed, conflicts = self._resolved(changes, Path(merged))
            if conflicts:
                raise Conflict(str(self.original), conflicts)
            replace_files(self.original, [change for change in changes if change.path in changed], changed, before)

    def conflicts(self, changes: Sequence[FileChange]) -> list[str]:
        """Paths among the changes that have also changed in the original, so that they cannot be merged."""
        with locked(self.original, shared=True), self._folder_for_merges() as merged:
            return self._resolved(changes, Path(merged))[1]

    def diff(self, name: str) -> str:
        """The change of a file as a unified diff; a file that is not UTF-8 text is only named."""
        try:
            before, after = (lines_of(folder, name) for folder in (self.base, self.changed))
        except UnicodeDecodeError:
            return f"Binary file {name} differs\n"
        lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def _folder_for_merges(self) -> tempfile.TemporaryDirectory[str]:
        # What cannot be removed now is removed with the scratch folder.
        return tempfile.TemporaryDirectory(dir=self.scratch, ignore_cleanup_errors=True)

    def _resolved(self, changes: Sequence[FileChange], merged: Path) -> tuple[dict[str, Path], list[str]]:
        """Return the folders of the new files by path, without those that the original has already, and conflicts."""
        changed, conflicts = {}, []
        deleted = {change.path for change in changes if change.kind == "deleted"}
        for name in (change.path for change in changes):
            if same(self.changed, self.original, name):
                continue  # The original has the change already.
            if self._has_no_place(name, deleted):
                conflicts.append(name)
            elif same(self.base, self.original, name):
                changed[name] = self.changed
            elif (text := merged_text(self.original / name, self.base / name, self.changed / name)) is not None:
                copy_file(self.changed, merged, name)
                (merged / name).write_bytes(text)
                changed[name] = merged
            else:
                conflicts.append(name)
        return changed, conflicts

    def _has_no_place(self, name: str, deleted: Set[str]) -> bool:
        """Whether a file, or a link that leads elsewhere, stands where the original would need a folder, or reverse."""
        for parent in Path(name).parents[:-1]:
            place = self.original / parent
            if place.is_symlink() or (place.exists() and not place.is_dir()):
                return parent.as_posix() not in deleted
        place = self.original / name
        return (
            not place.is_symlink()
            and place.is_dir()
            and name not in deleted
            and any(f"{name}/{inner}" not in deleted for inner in files_in(place))
        )
