"""Potentials: the reward seen and what is predicted, as eq. 6 adds them, and as eq. 5 has it for returns of 0 and s."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amc_agents.smc import EveryStep, potentials
from amc_agents.testing.enumerable import EnumerableWorld, run_smc

SUCCESS = 2.0


def binary_world(seed: int) -> EnumerableWorld:
    """Leaves pay `SUCCESS` or nothing, and nothing else pays."""
    world = EnumerableWorld.random(seed)
    pays = np.random.default_rng(seed).random(len(world.children)) < 0.3
    return replace(world, rewards=np.where(world.is_leaf & pays, SUCCESS, 0.0))


def soft_values(world: EnumerableWorld, beta: float) -> np.ndarray:
    """`[V]` log E[exp(G / beta)] at every node, G the return still to come, by walking the tree from its leaves."""
    twist = np.ones(len(world.children))
    for node in reversed(range(len(twist))):
        after = [
            probability * np.exp(world.rewards[child] / beta) * twist[child]
            for child, probability in zip(world.children[node], world.probabilities[node], strict=True)
            if child >= 0
        ]
        twist[node] = sum(after) if after else 1.0
    return np.log(twist)


def test_without_a_success_reward_it_is_the_sum():
    np.testing.assert_allclose(potentials(np.array([0.5, 1.0]), np.array([0.25, -2.0]), 0.5), [1.5, -2.0])


@pytest.mark.parametrize("beta", [0.05, 0.3, 4.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_mean_gives_eq_5_exactly_where_the_return_is_0_or_success(seed, beta):
    world = binary_world(seed)
    assert 0.0 < world.future_return[0] < SUCCESS
    seen = np.where(world.is_leaf, world.rewards, 0.0)
    expected = seen / beta + soft_values(world, beta)
    np.testing.assert_allclose(potentials(seen, world.future_return, beta, SUCCESS), expected, atol=1e-12)
    np.testing.assert_allclose(potentials(seen, world.future_return, beta, SUCCESS)[0], world.log_evidence(beta))


def test_at_large_beta_both_are_the_same():
    predicted = np.linspace(0.0, SUCCESS, 7)
    plain, soft = (potentials(np.zeros(7), predicted, 1e4, success) for success in (None, SUCCESS))
    np.testing.assert_allclose(soft, plain, rtol=1e-3)


def test_small_probabilities_weigh_by_their_ratio():
    of_zero, of_small, of_larger, of_certain = potentials(np.zeros(4), np.array([0.0, 0.01, 0.05, 1.0]), 0.02, 1.0)
    assert of_zero == 0.0
    assert of_larger - of_small == pytest.approx(np.log(5), abs=1e-9)
    assert of_certain == pytest.approx(50.0)


def test_predictions_outside_of_what_can_be_are_taken_to_its_ends():
    weights = potentials(np.zeros(2), np.array([-0.1, 1.2]), 0.001, 1.0)  # exp(1 / beta) would overflow
    np.testing.assert_allclose(weights, [0.0, 1000.0])


@pytest.mark.thorough
def test_z_is_the_worlds_and_known_better_than_by_means_where_success_is_rare():
    world, beta = binary_world(4), 0.4
    assert world.future_return[0] < 0.02 * SUCCESS

    def potential(success):
        return lambda nodes: potentials(
            np.where(world.is_leaf, world.rewards, 0.0)[nodes], world.future_return[nodes], beta, success
        )

    exact = np.exp(world.log_evidence(beta))
    spread = {}
    for success in (None, SUCCESS):
        run = run_smc(world, np.random.default_rng(1), 8, EveryStep(), potential(success), batch=(20_000,))
        estimates = np.exp(run.log_evidence)
        spread[success] = estimates.std()
        assert abs(estimates.mean() - exact) < 5 * estimates.std() / np.sqrt(20_000)
    assert spread[SUCCESS] < 0.9 * spread[None]
