"""Files that are replaced atomically, and locks that keep two processes from writing the same folder."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from amc_agents.errors import CheckpointError, ConfigurationError, StorageError
from amc_agents.quoting import excerpt


def replace_file(path: Path, content: str | bytes | Callable[[Path], object]) -> None:
    """Replace a file atomically: a reader sees either the old content or the new content.

    Args:
        path: the file; its folder must exist.
        content: text (UTF-8), bytes, or a function that writes the content to the path it is given.

    Raises:
        StorageError: the file cannot be written.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    with storage_errors(path):
        try:
            if callable(content):
                content(unfinished)
            else:
                unfinished.write_bytes(content.encode() if isinstance(content, str) else content)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block into a `StorageError` that names `path` and the remedy."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(str(path), cause_and_remedy(error)) from error


def cause_and_remedy(error: OSError) -> str:
    """Explain an `OSError` of a file operation, and what to do about it."""
    return _CAUSES.get(error.errno or 0, error.strerror or str(error))


@contextmanager
def sole_user(lock: Path, *, doing: str) -> Iterator[None]:
    """Hold a lock file while the block runs. The operating system releases the lock if the process is killed.

    Args:
        lock: the lock file; its folder must exist. The empty file is not removed.
        doing: the work that holds the lock, for the error message, such as "amc bench".

    Raises:
        ConfigurationError: another process holds the lock.
        StorageError: the lock file cannot be created.
    """
    held = FileLock(lock)
    with storage_errors(lock.parent):
        try:
            held.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                f"{lock.parent} is in use by another process ({doing}): wait until it ends, or choose another folder"
            ) from None
    try:
        yield
    finally:
        held.release()


@contextmanager
def sole_writer(out: Path) -> Iterator[None]:
    """Keep other processes from producing the same result folder.

    Raises:
        ConfigurationError: another process is producing it.
        StorageError: the parent folder is not writable.
    """
    with storage_errors(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    lock = out.parent / f".{out.name}.lock"
    with sole_user(lock, doing=f"it is writing {out.name}"):
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def taking_turns(lock: Path) -> Iterator[None]:
    """Hold a lock file while the block runs; wait while another process holds it.

    Raises:
        StorageError: the lock file cannot be created.
    """
    held = FileLock(lock)
    with storage_errors(lock.parent):
        held.acquire()
    try:
        yield
    finally:
        held.release()


class JsonLinesFile:
    """An append-only file of JSON objects, one per line, for one writing process. Use it as a context manager.

    Opening the file removes a last line that an interruption left incomplete.

    Args:
        path: the file; its folder must exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: FileIO | None = None

    def __enter__(self) -> JsonLinesFile:
        with storage_errors(self.path):
            self._drop_torn_line()
            self._open = FileIO(self.path, "a")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None

    def append(self, values: Mapping[str, Any], *, allow_nan: bool = True) -> None:
        """Append a line. When this returns, the operating system has received all of it.

        Raises:
            ConfigurationError: the file is not open.
            StorageError: the line was not written completely.
        """
        if self._open is None:
            raise ConfigurationError(f"{self.path} is not open: append lines inside its `with` block")
        line = (json.dumps(values, allow_nan=allow_nan) + "\n").encode()
        with storage_errors(self.path):
            if self._open.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _drop_torn_line(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        complete = content.rfind(b"\n") + 1
        if complete != len(content):
            os.truncate(self.path, complete)


def read_json_object(path: Path, *, remedy: str) -> dict[str, Any]:
    """Read the JSON object in a file.

    Args:
        path: the file.
        remedy: advice for the error message.

    Raises:
        CheckpointError: the file cannot be read or parsed, or its content is not an object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error}): {remedy}") from error
    except (ValueError, RecursionError) as error:
        cause = excerpt(f"{type(error).__name__}: {error}", 150)
        raise CheckpointError(f"{path} is damaged or not JSON ({cause}): {remedy}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a JSON {type(content).__name__}; expected an object: {remedy}")
    return content


_CAUSES = {
    errno.ENOSPC: "the disk is full. Free some space; finished work is kept",
    errno.EDQUOT: "the disk quota is exceeded. Free some space; finished work is kept",
    errno.EFBIG: "the file is larger than the process may write (ulimit -f) or the file system can hold. Raise the "
    "limit, or choose another folder",
    errno.EIO: "the device reported an error. Check the disk, or choose another folder",
    errno.EROFS: "the file system is read-only. Choose another folder",
    errno.EACCES: "permission denied. Choose another folder, or grant write permission",
    errno.EPERM: "permission denied. Choose another folder, or grant write permission",
    errno.ENOTDIR: "a component of the path is a file, not a folder. Choose another folder",
    errno.EEXIST: "a file with the name of the folder exists. Choose another folder",
    errno.EISDIR: "a folder with the name of the file exists. Choose another name",
    errno.ENOENT: "the folder does not exist. Create it first",
}
