"""Random state for one world, for games that draw from the module `random`."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TURN = threading.Lock()
"""Worlds in several threads take turns, since the module has a single state."""


class Luck:
    """A state of the module `random` that belongs to one world.

    Inside `with luck.drawn():` the module continues from this state, and afterwards it has the caller's state again.
    Another thread that draws from the module in between is not isolated: use `ProcessWorld` for such a program.

    Args:
        seed: seed of the state.
    """

    def __init__(self, seed: int) -> None:
        self._state: tuple[Any, ...] = random.Random(seed).getstate()

    def __deepcopy__(self, memo: dict[int, Any]) -> Luck:
        """Copy the state by reference, since it is immutable: copying its 625 numbers would take longer than a step."""
        twin = object.__new__(Luck)
        twin._state = self._state
        return twin

    @contextmanager
    def drawn(self) -> Iterator[None]:
        """Exchange the state of the module `random` inside the `with` block."""
        with _TURN:
            callers = random.getstate()
            random.setstate(self._state)
            try:
                yield
            finally:
                self._state = random.getstate()
                random.setstate(callers)
