"""Keep numpy's OpenBLAS on one thread while small matrices are multiplied.

On matrices as small as ours several BLAS threads mostly wait for each other, spinning: with two threads on a busy
machine of two cores a decoding step took 4 times the processor time. Other BLAS libraries are left as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from amc_agents.concurrency.threads import lock_across_forks

# (prefix, suffix) of the symbols, by how the library was built; numpy's own wheels use the first.
_SPELLINGS = (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", ""))


class _OpenBlas(NamedTuple):
    get_threads: Callable[[], int]
    set_threads: Callable[[int], None]


_lock = lock_across_forks()
_users = 0
_before = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Inside the block, and while any thread is in such a block, OpenBLAS computes on the calling thread alone."""
    global _users, _before
    library = _openblas()
    if library is None:
        yield
        return
    with _lock:
        if _users == 0:
            _before = library.get_threads()
            if _before > 1:
                library.set_threads(1)
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _before > 1:
                library.set_threads(_before)


@cache
def _openblas() -> _OpenBlas | None:
    """The OpenBLAS that came with numpy's wheel, or None where numpy uses another library."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            # It is loaded already, by numpy; this gives the same instance.
            library = ctypes.CDLL(str(path))
            for prefix, suffix in _SPELLINGS:
                get = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
                put = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if get is not None and put is not None:
                    put.restype = None
                    return _OpenBlas(get, put)
    return None
