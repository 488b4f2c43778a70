"""The state of a training that goes on after a kill: a hidden folder beside the result.

It says what is being trained (`training.json`) and holds the Trainer's checkpoints, each marked as whole by a file that
is written last. It is there as long as the result is not.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from amc_agents.errors import CheckpointError, ConfigurationError
from amc_agents.files import replace_file, sole_user, storage_errors

DESCRIPTION = "training.json"
WHOLE = "amc_state.json"
"""In a checkpoint: it is whole, and what the Trainer does not keep itself."""


class TrainingState:
    """The hidden folder beside `out`."""

    def __init__(self, out: str | Path) -> None:
        self.out = Path(out)
        self.folder = self.out.parent / f".{self.out.name}.training"
        self._held = ExitStack()

    def check(self, description: Mapping[str, Any], *, resume: bool) -> bool:
        """Looks before anything is written, and changes nothing.

        Args:
            description: what is to be trained; plain values, nested in mappings at most.
            resume: whether what was interrupted is to go on.

        Returns:
            Whether there is a training to go on with.

        Raises:
            ConfigurationError: `out` holds something; there is an interrupted training, and it is not to go on; or it
                is one with other settings or data.
        """
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ConfigurationError(f"{self.out} holds something already: give a new folder, or remove it first")
        if self.last() is None:
            return False
        if not resume:
            raise ConfigurationError(
                f"{self.folder} holds a training of {self.out} that was interrupted: go on with it (resume=True; "
                "on the command line: --resume), or remove that folder to start anew"
            )
        path = self.folder / DESCRIPTION
        try:
            before = json.loads(path.read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise CheckpointError(f"{path} cannot be read ({error}): remove {self.folder}, and start anew") from error
        found, now = _flat(before), _flat(json.loads(json.dumps(description)))
        other = [
            f"{name}: {found.get(name, 'nothing')!r} then, {now.get(name, 'nothing')!r} now"
            for name in sorted({*found, *now})
            if found.get(name) != now.get(name)
        ]
        if other:
            raise ConfigurationError(
                f"the interrupted training in {self.folder} is another one. {'; '.join(other)}. Give what was given "
                "then, or another `out`, or remove that folder to start anew"
            )
        return True

    def begin(self, description: Mapping[str, Any]) -> None:
        """Make the folder, or make it ready to go on with: what a kill left half written is removed.

        The folder is held until `close`.

        Raises:
            ConfigurationError: another process is training `out`.
            StorageError: the folder cannot be written.
        """
        with storage_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._held.enter_context(sole_user(self.folder / ".lock", doing=f"a training of {self.out}"))
        for path in self.folder.glob("checkpoint-*"):
            if not (path / WHOLE).is_file():
                shutil.rmtree(path)
        write_json(self.folder / DESCRIPTION, description)

    @contextmanager
    def left_if_useful(self) -> Iterator[None]:
        """Where the block fails before a state is saved, nothing is left of it but rows that were built on the way."""
        try:
            yield
        except BaseException:
            if self.last() is None:
                (self.folder / DESCRIPTION).unlink(missing_ok=True)
                for path in self.folder.glob("checkpoint-*"):
                    shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):
                    (self.folder / ".lock").unlink()
                    self.folder.rmdir()
            raise

    def close(self) -> None:
        """Let other processes use the folder, where this one held it."""
        self._held.close()

    def empty(self, name: str) -> Path:
        """A new folder in this one, whatever was there."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def last(self) -> Path | None:
        """The newest checkpoint that is whole."""
        found = [path.parent for path in self.folder.glob(f"checkpoint-*/{WHOLE}")]
        return max(found, key=lambda path: int(path.name.rpartition("-")[2]), default=None)

    def finish(self, result: Path) -> None:
        """`result`, a folder in this one, becomes `out` at once, and the state is removed."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        # Onto nothing or onto an empty folder, else it fails.
        os.rename(result, self.out)
        shutil.rmtree(self.folder)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a file atomically."""
    replace_file(path, json.dumps(values, indent=1) + "\n")


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found
