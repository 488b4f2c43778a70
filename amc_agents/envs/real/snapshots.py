"""Saved states of worlds in files, which remain until they are released or removed by age."""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from amc_agents.envs.real.workspace import remove
from amc_agents.errors import WorldError
from amc_agents.files import storage_errors
from amc_agents.quoting import quoted

PREFIX = "amc-snapshot-"
"""Beginning of the names of all snapshots, which then contain the time of creation and a random number."""
_NAME = re.compile(rf"{PREFIX}(\d+)-[0-9a-f]{{16}}")


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
        path = self._folder / f"{PREFIX}{int(time.time())}-{secrets.token_hex(8)}"
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
        if not isinstance(name, str) or not _NAME.fullmatch(name):
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
    matches = [(path, _NAME.fullmatch(path.name)) for path in folder.glob(f"{PREFIX}*")]
    ages = [(path, timedelta(seconds=time.time() - int(match[1]))) for path, match in matches if match]
    return sorted(ages, key=lambda found: found[1], reverse=True)


def _count_files(folder: Path) -> int:
    return sum(len(names) for _, _, names in os.walk(folder))
