"""A restored generator draws and spawns as the original would."""

import numpy as np
import pytest

from amc_agents.population.features.durable.records import dump_rng, load_rng


@pytest.mark.parametrize("n_drawn", [0, 1, 7])
@pytest.mark.parametrize("n_spawned", [0, 3])
def test_draws_and_spawned_streams_continue(n_drawn, n_spawned):
    rng = np.random.default_rng([2**63, 1]).spawn(2)[1]
    rng.spawn(n_spawned)
    rng.integers(0, 2**20, n_drawn, dtype=np.uint32)
    back = load_rng(dump_rng(rng))
    assert back.spawn(1)[0].random() == rng.spawn(1)[0].random()
    assert back.integers(2**20, dtype=np.uint32) == rng.integers(2**20, dtype=np.uint32)
    assert back.normal() == rng.normal()
    assert back.spawn(2)[1].spawn(1)[0].random() == rng.spawn(2)[1].spawn(1)[0].random()
