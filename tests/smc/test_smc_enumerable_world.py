from __future__ import annotations

import itertools

import numpy as np
import pytest

from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never
from amc_agents.testing.enumerable import EnumerableWorld, run_smc

BETA = 0.7


def paths(world, node=0, probability=1.0, rewards=()):
    """Every trajectory, by walking the tree: (leaf, probability, rewards)."""
    if np.all(world.children[node] < 0):
        return [(node, probability, rewards)]
    branches = [
        paths(world, child, probability * p, (*rewards, world.rewards[child]))
        for child, p in zip(world.children[node], world.probabilities[node], strict=True)
        if child >= 0
    ]
    return list(itertools.chain.from_iterable(branches))


@pytest.mark.parametrize("seed", range(10))
def test_what_the_world_says_of_itself_agrees_with_walking_it(seed):
    world = EnumerableWorld.random(seed)
    walked = sorted(paths(world))
    assert [leaf for leaf, _, _ in walked] == world.leaves.tolist()
    assert 16 <= len(walked) <= 32
    assert len({len(rewards) for _, _, rewards in walked}) >= 3
    pi, total = np.array([p for _, p, _ in walked]), np.array([sum(rewards) for _, _, rewards in walked])
    np.testing.assert_allclose(world.pi, pi)
    np.testing.assert_allclose(world.returns[world.leaves], total)
    np.testing.assert_array_equal(world.depth[world.leaves], [len(rewards) for _, _, rewards in walked])
    z = np.sum(pi * np.exp(total / BETA))
    assert pi.sum() == pytest.approx(1.0)
    assert world.log_evidence(BETA) == pytest.approx(np.log(z))
    np.testing.assert_allclose(world.posterior(BETA), pi * np.exp(total / BETA) / z)
    assert world.future_return[0] == pytest.approx(np.sum(pi * total))
    assert np.all(world.future_return[world.leaves] == 0.0)


def test_a_seed_gives_one_world():
    first, again, other = (EnumerableWorld.random(seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rewards, again.rewards)
    assert not np.array_equal(first.children, other.children)


def test_particles_follow_pi():
    world = EnumerableWorld.random(3)
    nodes = np.zeros((4, 10_000), dtype=np.int64)
    for _ in range(world.depth.max()):
        nodes = world.advance(np.random.default_rng(nodes.sum()), nodes)
    np.testing.assert_array_equal(world.advance(np.random.default_rng(0), nodes), nodes)
    shares = np.bincount(nodes.ravel(), minlength=len(world.children))[world.leaves] / nodes.size
    assert np.all(np.abs(shares - world.pi) <= 4 * np.sqrt(world.pi * (1 - world.pi) / nodes.size))


@pytest.mark.parametrize("potential", ["rewards_seen", "rewards_hidden"])
def test_potentials_end_at_the_return_and_are_imperfect_before(potential):
    world = EnumerableWorld.random(3)
    phi = getattr(world, potential)(BETA)(np.arange(len(world.children)))
    np.testing.assert_allclose(phi[world.leaves], world.returns[world.leaves] / BETA)
    inner = np.flatnonzero(~world.is_leaf)
    assert np.abs(phi[inner] - (world.returns + world.future_return)[inner] / BETA).max() > 0.1


def test_potentials_are_asked_for_only_where_needed():
    world = EnumerableWorld.random(3)
    asked: list[np.ndarray] = []

    def potential(nodes):
        asked.append(nodes)
        return world.rewards_seen(BETA)(nodes)

    for schedule, weighings in ((Never(), 1), (AtSteps(2, 4), 3), (AtSteps(2, 40), 2), (EveryStep(), 6)):
        asked.clear()
        run = run_smc(world, np.random.default_rng(0), 50, schedule, potential)
        assert run.n_weighings == len(asked) == weighings, schedule
        assert all(np.all(nodes > 0) for nodes in asked), "the initial state must not be asked about"
        assert np.all(world.is_leaf[asked[-1]])


def test_a_seed_fixes_a_whole_run():
    world = EnumerableWorld.random(3)
    first, again, other = (
        run_smc(world, np.random.default_rng(seed), 15, EssBelow(0.9), world.rewards_seen(BETA)) for seed in (1, 1, 2)
    )
    assert len(first.ancestors) > 0
    np.testing.assert_array_equal(np.array(first.ancestors), np.array(again.ancestors))
    np.testing.assert_array_equal(first.nodes, again.nodes)
    assert first.log_evidence == again.log_evidence != other.log_evidence
