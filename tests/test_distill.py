"""What reproduce/distill imitates, where the tilted policy is known."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from amc_agents.testing.enumerable import EnumerableWorld
from tests.test_beyond import Tree

FOLDERS = [str(Path(__file__).parent.parent / "reproduce" / name) for name in ("distill", "beyond")]
BETA = 0.7
WORLD = EnumerableWorld.random(3, max_depth=4, n_leaves=(8, 14))


@pytest.fixture(scope="module")
def modules():
    sys.path[:0] = FOLDERS
    names = ("imitation", "filtering", "found")
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        for folder in FOLDERS:
            sys.path.remove(folder)
        for name in names:
            sys.modules.pop(name, None)


def turns(share_of_leaf):
    """`[V]` share of the weighted trajectories that pass through each node, which fixes the likeliest policy."""
    through = np.zeros(len(WORLD.children))
    for leaf, share in share_of_leaf.items():
        through[leaf] += share
    for node in reversed(range(len(through))):
        for child in WORLD.children[node]:
            through[node] += through[child] if child >= 0 else 0.0
    return through


def test_imitation_of_the_weighted_particles_is_the_tilted_policy(modules):
    model, rng = Tree(np.random.default_rng(0), WORLD), np.random.default_rng(1)
    found = asyncio.run(modules["filtering"].filtered(model, 5_000, (1, 2, 3), BETA, rng))
    learnt = turns(modules["imitation"].shares([state.node for state in found.states], found.log_weights, 0.0))
    exact = turns(dict(zip(WORLD.leaves.tolist(), WORLD.posterior(BETA).tolist(), strict=True)))
    prior = turns(dict(zip(WORLD.leaves.tolist(), WORLD.pi.tolist(), strict=True)))
    np.testing.assert_allclose(learnt, exact, atol=0.04)
    assert np.abs(prior - exact).max() > 0.1


def test_shares_merge_copies_and_leave_out_small_ones(modules):
    shares = modules["imitation"].shares(["a", "b", "a", "c"], np.log([1.0, 1.0, 1.998, 0.002]).tolist())
    assert shares == pytest.approx({"a": 2.998 / 3.998, "b": 1 / 3.998})
