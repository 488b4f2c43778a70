"""Potentials: the reward seen and what is predicted, as eq. 6 adds them, and as eq. 5 has it for returns of 0 and s.

A beta where none is given.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from amc_agents.smc import EveryStep, ess, halving_beta, potentials
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


def shared(returns, predicted, beta, success=None):
    """The effective sample size as a share of the particles."""
    return float(ess(potentials(returns, predicted, beta, success))) / len(returns)


def test_beta_of_three_particles_solves_the_quadratic():
    # Values 0, 1, 2 at x = exp(1 / beta):
    # (1 + x + x^2)^2 = 1.5 (1 + x^2 + x^4), so 1.5 (1 - x + x^2) = 1 + x + x^2: x^2 - 5x + 1 = 0.
    root = (5 + np.sqrt(21)) / 2
    assert halving_beta(np.zeros(3), np.array([0.0, 1.0, 2.0]), 0.0) == pytest.approx(1 / np.log(root), rel=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_beta_has_the_scale_of_the_values_and_ignores_their_origin(seed):
    rng = np.random.default_rng(seed)
    returns, predicted = rng.normal(size=15), rng.normal(size=15)
    beta = halving_beta(returns, predicted, 0.0)
    assert beta is not None
    assert shared(returns, predicted, beta) == pytest.approx(0.5, rel=1e-9)
    assert shared(returns, predicted, 1.01 * beta) > 0.5, "the largest such beta"
    assert halving_beta(1e6 * returns, 1e6 * predicted + 1e6, 0.0) == pytest.approx(1e6 * beta, rel=1e-6)


@pytest.mark.parametrize(
    "values",
    [[], [0.4], [0.4, 0.4], [0.3, 0.3, 0.3, 0.9], [0.30, 0.309, 0.3, 0.9, 0.8], [0.50, 0.505, 0.51, 0.507],
     [0.7, 0.71, 0.1]],
)  # fmt: skip
def test_no_beta_is_chosen_where_more_than_half_are_as_good_as_equal(values):
    assert halving_beta(np.zeros(len(values)), np.array(values), 0.01) is None


def test_a_chain_of_close_values_is_no_tie():
    assert halving_beta(np.zeros(15), np.linspace(0.5, 0.6, 15), 0.01) is not None


def test_where_half_of_the_particles_share_the_best_value_their_lead_weighs_e_to_the_5th():
    assert halving_beta(np.array([0.0] * 4 + [1.0] * 4), np.zeros(8), 0.0) == pytest.approx(0.2)


def test_no_beta_makes_the_resolution_weigh_more_than_e():
    values = np.array([0.91, 0.91, 0.9, 0.9, 0.88, 0.86])
    beta = halving_beta(np.zeros(6), values, 0.005)
    assert beta == pytest.approx(0.01 / 2, rel=0.5)
    assert halving_beta(np.zeros(4), np.array([0.5, 0.5, 0.4, 0.4]), 0.05) == 0.05, "no beta halves it"


def test_a_far_outlier_does_not_set_the_scale():
    values = np.array([-100.0, *np.linspace(0.9, 1.0, 9)])
    beta = halving_beta(np.zeros(10), values, 0.005)
    assert beta is not None
    assert shared(np.zeros(10), values, beta) == pytest.approx(0.5)
    assert beta < 0.1


def test_by_eq_5_beta_halves_it_or_is_a_twentieth_of_the_success():
    rare, common = np.array([0.001, 0.002, 0.004, 0.005, 0.006, 0.05]), np.array([0.4, 0.45, 0.5, 0.52, 0.55, 0.6])
    beta = halving_beta(np.zeros(6), SUCCESS * rare, 1e-4, SUCCESS)
    assert shared(np.zeros(6), SUCCESS * rare, beta, SUCCESS) == pytest.approx(0.5, rel=1e-9)
    assert halving_beta(np.zeros(6), SUCCESS * common, 1e-4, SUCCESS) == SUCCESS / 20
