"""The state of a training that can be resumed: a hidden folder beside the result.

It holds a description of the training (`training.json`), the training rows and Trainer's checkpoints. It exists only as
long as the result does not.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from amc_agents.errors import AmcError, CheckpointError, ConfigurationError, StorageError
from amc_agents.files import cause_and_remedy, replace_file, sole_user, storage_errors
from amc_agents.quoting import quoted

DESCRIPTION = "training.json"
ROWS = "rows"
CHECKPOINT_STATE = "trainer_state.json"
"""The file that Trainer writes last into a checkpoint."""


class TrainingState:
    """The hidden folder beside `out`."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        self.folder = self.out.parent / f".{self.out.name}.training"
        self._lock = ExitStack()

    def check(self, description: Mapping[str, Any], *, resume: bool) -> None:
        """Check that the training may start, without changing anything.

        Args:
            description: what is to be trained: plain values, nested in mappings only.
            resume: whether to resume an interrupted training.

        Raises:
            ConfigurationError: `out` is not empty; or there is an interrupted training, and `resume` is False or its
                settings or data differ.
        """
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ConfigurationError(f"{self.out} is not empty: choose another folder, or remove it first")
        if self.last() is None:
            return
        if not resume:
            raise ConfigurationError(
                f"{self.folder} holds a training of {self.out} that was interrupted: resume it (resume=True; on the "
                "command line: --resume), or remove that folder to start again"
            )
        before, now = self._flat_description(), _flat(json.loads(json.dumps(description)))
        changed = [
            f"{name}: {quoted(before.get(name, 'nothing'))} then, {quoted(now.get(name, 'nothing'))} now"
            for name in sorted({*before, *now})
            if before.get(name) != now.get(name)
        ]
        if changed:
            raise ConfigurationError(
                f"the interrupted training in {self.folder} differs: {'; '.join(changed)}. Use its settings and data, "
                "choose another `out`, or remove that folder to start again"
            )

    def begin(self, description: Mapping[str, Any]) -> None:
        """Create the folder, or remove what an interruption left half-written, and lock the folder until `close`.

        Raises:
            ConfigurationError: another process is training `out`.
            StorageError: the folder cannot be written.
        """
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.enter_context(sole_user(self.folder / ".lock", doing=f"a training of {self.out}"))
        for checkpoint in self.folder.glob("checkpoint-*"):
            if not _is_complete(checkpoint):
                shutil.rmtree(checkpoint)
        replace_file(self.folder / DESCRIPTION, json.dumps(description, indent=1) + "\n")

    @contextmanager
    def left_if_useful(self, *, keep_rows: bool) -> Iterator[None]:
        """If the block fails before the first checkpoint, empty the folder.

        Args:
            keep_rows: keep the training rows, which take long to build for a large dataset.
        """
        try:
            yield
        except BaseException:
            if self.last() is None:
                for path in self.folder.glob("*"):
                    if path.is_dir() and not (keep_rows and path.name == ROWS):
                        shutil.rmtree(path, ignore_errors=True)
                (self.folder / DESCRIPTION).unlink(missing_ok=True)
                with suppress(OSError):
                    (self.folder / ".lock").unlink()
                    self.folder.rmdir()
            raise

    def close(self) -> None:
        """Release the folder's lock."""
        self._lock.close()

    def empty(self, name: str) -> Path:
        """Return a new subfolder; an existing one is removed first."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def last(self) -> Path | None:
        """Return the newest complete checkpoint."""
        complete = filter(_is_complete, self.folder.glob("checkpoint-*"))
        return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)

    def finish(self, result: Path) -> None:
        """Move `result`, a subfolder, to `out` atomically and remove the state."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        # Fails unless `out` is missing or an empty folder.
        os.rename(result, self.out)
        shutil.rmtree(self.folder)

    def _flat_description(self) -> dict[str, Any]:
        path = self.folder / DESCRIPTION
        try:
            return _flat(json.loads(path.read_text()))
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): remove {self.folder}, and start again") from error


def _is_complete(checkpoint: Path) -> bool:
    try:
        json.loads((checkpoint / CHECKPOINT_STATE).read_text())
    except (OSError, json.JSONDecodeError):
        return False
    return True


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted names."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


@contextmanager
def weights_written(folder: Path) -> Iterator[None]:
    """Turn a failed write of the block into a `StorageError`, whichever library wrote.

    transformers reports a full disk as an `OSError` without advice; safetensors and torch, which write without Python,
    report it as errors of their own. All other errors pass, and so do errors of files outside the folder.

    Args:
        folder: the folder that the block writes.
    """
    try:
        yield
    except AmcError:
        raise
    except Exception as error:
        cause = error if isinstance(error, OSError) else _native(str(error))
        if cause is None or cause.errno not in _OF_STORAGE or not _is_inside(cause.filename, folder):
            raise
        raise StorageError(str(cause.filename or folder), cause_and_remedy(cause)) from error


def _native(message: str) -> OSError | None:
    """Return the system's error behind an error of safetensors or torch, or None if it is not about a write."""
    if (found := re.search(r"\(os error (\d+)\)", message)) is not None:
        number = int(found[1])
        return OSError(number, os.strerror(number))
    # torch does not say which error of the system it was. A write that ends early is almost always a full disk.
    if "inline_container.cc" in message or "PytorchStreamWriter" in message:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return None


def _is_inside(name: str | bytes | int | None, folder: Path) -> bool:
    return name is None or (isinstance(name, str) and Path(name).absolute().is_relative_to(folder.absolute()))


_OF_STORAGE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EFBIG,
    errno.EIO,
)
