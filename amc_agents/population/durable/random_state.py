"""Random generators as containers, with the counter of the streams that they have spawned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def dump_rng(rng: np.random.Generator) -> dict[str, Any]:
    """Return the state of a generator, and of the seed sequence from which it spawns others."""
    seeds = rng.bit_generator.seed_seq
    assert isinstance(seeds, np.random.SeedSequence)
    bits = rng.bit_generator.state
    return {**bits, **bits["state"], "seeds": seeds.state}


def load_rng(dumped: Mapping[str, Any]) -> np.random.Generator:
    """Rebuild a generator from what `dump_rng` returned: it draws and spawns as the original would."""
    bits = np.random.PCG64(np.random.SeedSequence(**dumped["seeds"]))
    state: Any = {**dumped, "state": {"state": dumped["state"], "inc": dumped["inc"]}}
    bits.state = state
    return np.random.Generator(bits)
