"""Run numpy's OpenBLAS on a single thread while small matrices are multiplied.

On matrices this small, several BLAS threads mostly spin while they wait for each other: with two threads on a busy
two-core machine, a decoding step took 4 times the CPU time. Other BLAS libraries are not changed.

The package threadpoolctl is not used: it lets a single Python thread control OpenBLAS's process-wide limit. When
blocks of several threads overlap, its limit is lifted too early and then stays at 1.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from amc_agents.concurrency.background import lock_across_forks

# (prefix, suffix) of the library's symbols, which depend on its build; numpy's own wheels use the first pair.
_SPELLINGS = (("scipy_", "64_"), ("", "64_"), ("scipy_", ""), ("", ""))


class _OpenBlas(NamedTuple):
    get_threads: Callable[[], int]
    set_threads: Callable[[int], None]


_lock = lock_across_forks()
_users = 0
_before = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit OpenBLAS to the calling thread, as long as any thread is inside such a block."""
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
    """Return the OpenBLAS that numpy's wheel contains, or None if numpy uses another library."""
    package = Path(np.__file__).parent
    for folder in (package.parent / "numpy.libs", package / ".dylibs"):
        for path in sorted(folder.glob("*openblas*")):
            # numpy has already loaded the library, so this returns the same instance.
            library = ctypes.CDLL(str(path))
            for prefix, suffix in _SPELLINGS:
                get_threads = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
                set_threads = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
                if get_threads is not None and set_threads is not None:
                    set_threads.restype = None
                    return _OpenBlas(get_threads, set_threads)
    return None
