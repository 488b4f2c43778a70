"""Where a model call finds its randomness when the caller gave no seed.

A particle's task sets `current_rng`; every model call that the particle makes then draws its request seed from
that stream. So a run is reproducible although its particles call the model concurrently and in any order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

current_rng: ContextVar[np.random.Generator | None] = ContextVar("current_rng", default=None)
"""The random stream of the particle that is running in this context, or None outside of any."""

SEED_LIMIT = 2**63


def particle_rng() -> np.random.Generator | None:
    """The running particle's random stream, or None."""
    return current_rng.get()


@contextmanager
def use_rng(rng: np.random.Generator) -> Iterator[np.random.Generator]:
    """Let model calls inside the block draw their seeds from `rng`."""
    token = current_rng.set(rng)
    try:
        yield rng
    finally:
        current_rng.reset(token)


def request_seed(call_seed: int | None = None, model_seed: int | None = None) -> int:
    """The seed of one model request.

    Args:
        call_seed: given with this call; wins.
        model_seed: a setting of the model object: used outside of particles only, since siblings must differ.

    Returns:
        The call's seed, else a draw from the particle's stream, else the model's seed, else fresh entropy.
    """
    if call_seed is not None:
        return call_seed
    rng = current_rng.get()
    if rng is not None:
        return int(rng.integers(SEED_LIMIT))
    return secrets.randbelow(SEED_LIMIT) if model_seed is None else model_seed
