"""Compare folders, and write changes to a folder atomically.

New files are staged in a folder inside the original, with a plan of all moves. Until the plan is written nothing has
moved; afterwards the moves can be carried out to the end by any process, because the place of each file says what is
done. So after a kill or a power failure the next call completes them. Old files are moved aside, and deleted only
after all new files are in their places.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from amc_agents.envs.real.changes import Conflict, FileChange
from amc_agents.envs.real.copying import read_link, same_bytes
from amc_agents.envs.real.workspace import remove
from amc_agents.errors import WorldError
from amc_agents.files import storage_errors
from amc_agents.quoting import listed

STAGING = ".amc-apply-"
"""Beginning of the names of staging folders; then a random number."""
LOCK_LIMIT_S = 60.0
"""Time limit in seconds of waiting for another process that reads or writes the original."""
_NAME = re.compile(rf"{STAGING}[0-9a-f]{{16}}")
_MARK, _PLAN = "amc-agents.txt", "plan.json"
_MARK_TEXT = "Files of an unfinished DirectoryFork.apply(). Do not delete them: the next call completes it.\n"


def files_in(folder: Path) -> set[str]:
    """Return the relative paths of all files and links in a folder."""
    return {path.relative_to(folder).as_posix() for path in _walk(folder)}


def _walk(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        yield from (Path(parent) / name for name in (*names, *links))


def same(first: Path, second: Path, name: str) -> bool:
    """True if a path in two folders has the same content, or exists in neither. Links are compared by their targets."""
    paths = first / name, second / name
    kinds = [_kind(path) for path in paths]
    if kinds[0] != kinds[1]:
        return False
    if kinds[0] == stat.S_IFLNK:
        return read_link(paths[0], first) == read_link(paths[1], second)
    return kinds[0] != stat.S_IFREG or same_bytes(*paths)


def _kind(path: Path) -> int | None:
    """The type of a file; None for a folder, and if nothing exists."""
    try:
        kind = stat.S_IFMT(path.lstat().st_mode)
        return None if kind == stat.S_IFDIR else kind
    except (FileNotFoundError, NotADirectoryError):
        return None


def lines_of(folder: Path, name: str) -> list[str]:
    """Return the lines of a text file; a link is one line; a missing file has none."""
    path = folder / name
    if path.is_symlink():
        return [f"link to {read_link(path, folder)[0]}\n"]
    return path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []


def copy_file(source: Path, target: Path, name: str) -> None:
    """Copy a file or link to the same path of another folder, and create its parents."""
    (target / name).parent.mkdir(parents=True, exist_ok=True)
    if (source / name).is_symlink():
        os.symlink(read_link(source / name, source)[0], target / name)
    else:
        shutil.copy2(source / name, target / name)


@contextmanager
def locked(original: Path, *, shared: bool = False) -> Iterator[None]:
    """Keep other processes from applying changes to a folder while the block runs, and complete what one left undone.

    Args:
        original: the folder.
        shared: whether others may read the folder at the same time.

    Raises:
        WorldError: another process applies changes for longer than the time limit, or an interrupted one cannot be
            completed.
    """
    descriptor = os.open(original, os.O_RDONLY) if os.name == "posix" else None
    try:
        if descriptor is not None:
            _lock(descriptor, original, shared=shared)
        if left := _left_in(original):
            if descriptor is not None and shared:
                _lock(descriptor, original, shared=False)
            _complete(original, left)
            if descriptor is not None and shared:
                _lock(descriptor, original, shared=True)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int, original: Path, *, shared: bool) -> None:
    import fcntl

    deadline = time.monotonic() + LOCK_LIMIT_S
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise WorldError(
                    f"another process has been reading or changing {original} by DirectoryFork for {LOCK_LIMIT_S:g} s: "
                    "wait until it has ended"
                ) from None
            time.sleep(0.02)
        except OSError:  # The file system has no locks.
            return


def replace_files(
    original: Path, changes: Sequence[FileChange], changed: Mapping[str, Path], before: Mapping[str, str | None]
) -> None:
    """Write changed files to a folder; after an error nothing is changed. Inside `locked`.

    Args:
        original: the folder.
        changes: the changes.
        changed: path -> folder whose file at this path is the new one.
        before: path -> `digest` of the file that is replaced.

    Raises:
        Conflict: a file has changed since it was compared.
        OSError: a file cannot be written.
    """
    if not changes:
        return
    staging = original / f"{STAGING}{secrets.token_hex(8)}"
    try:
        staging.mkdir()
        (staging / _MARK).write_text(_MARK_TEXT)
        for change in changes:
            if change.kind != "deleted":
                copy_file(changed[change.path], staging / "new", change.path)
        plan = [_planned(original, changed[change.path], change, before[change.path]) for change in changes]
        _sync_tree(staging)
        _write_plan(staging, {"changes": plan})
    except BaseException:
        _finish(staging)
        raise
    try:
        _carry_out(original, staging, plan)
    except BaseException:
        _undo(original, staging, plan)
        _finish(staging)
        raise
    with suppress(OSError):  # The next call deletes what cannot be deleted now.
        _finish(staging)


def _planned(original: Path, changed: Path, change: FileChange, before: str | None) -> dict[str, Any]:
    parents = [parent.as_posix() for parent in Path(change.path).parents[:-1]]
    return {
        "path": change.path,
        "kind": change.kind,
        "before": before,
        "made": [parent for parent in parents if not (original / parent).is_dir()],
        "emptied": [parent for parent in parents if not (changed / parent).is_dir()],
    }


def _left_in(original: Path) -> list[Path]:
    with os.scandir(original) as entries:
        return [original / entry.name for entry in entries if _NAME.fullmatch(entry.name) and entry.is_dir()]


def _complete(original: Path, left: Sequence[Path]) -> None:
    """Carry out the plans of processes that were killed, and remove what they left before they had a plan."""
    for staging in left:
        if not (staging / _MARK).is_file():
            if not any(staging.iterdir()):  # Its process was killed before it had written the mark, or after.
                staging.rmdir()
            continue
        with storage_errors(original):
            if (staging / _PLAN).is_file():
                try:
                    _carry_out(original, staging, json.loads((staging / _PLAN).read_bytes())["changes"])
                except Conflict as error:
                    raise WorldError(_by_hand(original, staging, error.places)) from error
            _finish(staging)


def _by_hand(original: Path, staging: Path, names: Sequence[str]) -> str:
    return (
        f"an interrupted apply() to {original} cannot be completed, because {listed(names)} changed meanwhile: "
        f"{staging} holds its files in new/ and the former ones in old/. Move those that you want to their places, "
        "then delete that folder"
    )


def _carry_out(original: Path, staging: Path, plan: Sequence[Mapping[str, Any]]) -> None:
    """Move old files aside and new files to their places, from wherever a process before has stopped."""
    new, old = staging / "new", staging / "old"
    pending = [each for each in plan if each["kind"] == "deleted" or _kind(new / each["path"])]
    for each in pending:
        name = each["path"]
        if each["kind"] != "added" and not _kind(old / name):
            if digest(original / name) != each["before"]:
                raise Conflict(str(original), [name])
            _move(original / name, old / name)
            if digest(old / name) != each["before"]:  # An editor has saved it just now.
                raise Conflict(str(original), [name])
        for parent in each["emptied"]:
            _remove_if_empty(original / parent)
    _sync_parents(original, old, pending)
    for each in pending:
        name = each["path"]
        if each["kind"] != "deleted":
            (original / name).parent.mkdir(parents=True, exist_ok=True)
            _remove_empty_folders(original / name)
            if _kind(original / name):
                raise Conflict(str(original), [name])
            os.replace(new / name, original / name)
    _sync_parents(original, old, pending)


def _undo(original: Path, staging: Path, plan: Sequence[Mapping[str, Any]]) -> None:
    """Move new files back to the staging folder, and old files back to their places."""
    new, old = staging / "new", staging / "old"
    for each in plan:
        name = each["path"]
        if each["kind"] != "deleted" and not _kind(new / name):
            _move(original / name, new / name)
        for parent in each["made"]:
            _remove_if_empty(original / parent)
    moved = [each["path"] for each in plan if _kind(old / each["path"])]
    if taken := [name for name in moved if _kind(original / name)]:
        raise WorldError(_by_hand(original, staging, taken))
    for name in moved:
        _move(old / name, original / name)
    _sync_parents(original, old, plan)


def _finish(staging: Path) -> None:
    """Delete a staging folder whose moves are all done or undone."""
    (staging / _PLAN).unlink(missing_ok=True)
    _sync(staging)
    _discard(staging)


def _discard(staging: Path) -> None:
    for name in ("new", "old", f".{_PLAN}", _MARK):
        remove(staging / name)
    if staging.is_dir():
        staging.rmdir()


def _write_plan(staging: Path, plan: Mapping[str, Any]) -> None:
    unfinished = staging / f".{_PLAN}"
    with open(unfinished, "w") as file:
        json.dump(plan, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, staging / _PLAN)
    _sync(staging)
    _sync(staging.parent)


def digest(path: Path) -> str | None:
    """Return a value that identifies a file's or link's content; None: there is no file."""
    kind = _kind(path)
    if kind is None or kind == stat.S_IFLNK:
        return None if kind is None else f"link {os.readlink(path)}"
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(source, target)


def _remove_if_empty(folder: Path) -> None:
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _remove_empty_folders(folder: Path) -> None:
    """Remove a folder that contains nothing but empty folders; an `OSError` says that it contains a file."""
    if folder.is_dir() and not folder.is_symlink():
        for parent, _, _ in os.walk(folder, topdown=False):
            os.rmdir(parent)


def _sync_tree(folder: Path) -> None:
    for parent, _, names in os.walk(folder):
        for name in names:
            if not (Path(parent) / name).is_symlink():
                _sync(Path(parent) / name)
        _sync(Path(parent))


def _sync_parents(original: Path, old: Path, plan: Sequence[Mapping[str, Any]]) -> None:
    folders = {(top / each["path"]).parent for top in (original, old) for each in plan}
    for folder in sorted(folder for folder in folders if folder.is_dir()):
        _sync(folder)


def _sync(path: Path) -> None:
    """Make a file or a folder's entries durable."""
    if os.name != "posix":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
