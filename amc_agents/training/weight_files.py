"""Errors of the libraries that write weights, as errors of this library."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amc_agents.errors import AmcError, StorageError
from amc_agents.files import cause_and_remedy


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
