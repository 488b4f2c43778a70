"""Seeds of model calls whose caller gave none.

The task of a particle sets its random stream, and every model call of the particle draws its request seed from it. So a
run is reproducible although its particles call the model concurrently and in any order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from amc_agents.context import changed_context, particle_context

SEED_LIMIT = 2**63


def particle_rng() -> np.random.Generator | None:
    """Return the random stream of the running particle, or None outside particles."""
    return particle_context().rng


@contextmanager
def use_rng(rng: np.random.Generator) -> Iterator[np.random.Generator]:
    """Draw the seeds of model calls inside the block from `rng`."""
    with changed_context(rng=rng):
        yield rng


def request_seed(call_seed: int | None = None, model_seed: int | None = None) -> int:
    """Choose the seed of a model request.

    Args:
        call_seed: seed given with the call; takes precedence.
        model_seed: seed of the model object; only used outside particles, because sibling particles must differ.

    Returns:
        The call's seed, else a draw from the particle's stream, else the model's seed, else fresh entropy.
    """
    if call_seed is not None:
        return call_seed
    rng = particle_rng()
    if rng is not None:
        return int(rng.integers(SEED_LIMIT))
    return secrets.randbelow(SEED_LIMIT) if model_seed is None else model_seed
