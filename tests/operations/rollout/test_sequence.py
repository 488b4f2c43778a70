import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.operations.rollout.confidence import _boundary, half_width, lift_sequence, mean_sequence, n_needed
from tests.operations.rollout.bank import most

N_RUNS = 200


@given(st.floats(0.0, 0.99), st.floats(-1.0, 30.0))
def test_the_inequality_behind_the_sequence(rate, error):
    # exp(lambda x - psi(lambda) x^2) <= 1 + lambda x for x >= -1: Fan, Grama and Liu, as used by Howard et al.
    psi = -np.log1p(-rate) - rate
    assert np.exp(rate * error - psi * error**2) <= 1 + rate * error + 1e-9


def test_the_mixture_reaches_its_level_exactly_at_the_boundary():
    variances = np.array([0.0, 0.5, 7.0, 400.0, 1e5])
    from amc_agents.operations.rollout import confidence

    s = _boundary(variances, 0.025)
    exponents = s[:, None] * confidence._LAMBDAS - confidence._PSI * variances[:, None]
    assert np.exp(exponents).mean(axis=1) == pytest.approx(1 / 0.025)


def test_a_mean_is_covered_at_all_sizes_at_once():
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(N_RUNS):
        sequence = mean_sequence((rng.random(300) < 0.3).astype(float))
        missed += bool(np.any((sequence.low > 0.3) | (sequence.high < 0.3)))
    assert missed <= most(N_RUNS, 0.05)


def test_a_lift_is_covered_although_it_drifts_and_the_share_changes():
    rng = np.random.default_rng(1)
    n = 600
    lifts = np.where(np.arange(n) < n / 2, 0.3, -0.1)
    shares = np.where(np.arange(n) < n / 3, 0.1, 0.4)
    truth = np.cumsum(lifts) / np.arange(1, n + 1)
    missed = 0
    for _ in range(N_RUNS):
        treated = rng.random(n) < shares
        outcomes = (rng.random(n) < 0.4 + lifts * treated).astype(float)
        sequence = lift_sequence(treated, outcomes, shares)
        missed += bool(np.any((sequence.low > truth) | (sequence.high < truth)))
    assert missed <= most(N_RUNS, 0.05)


@pytest.mark.thorough
def test_the_estimate_is_unbiased_at_every_size():
    rng = np.random.default_rng(2)
    estimates = []
    for _ in range(2000):
        treated = rng.random(20) < 0.2
        outcomes = np.where(treated, 0.7, rng.random(20))
        estimates.append(lift_sequence(treated, outcomes, np.full(20, 0.2)).estimate)
    means, errors = np.mean(estimates, axis=0), np.std(estimates, axis=0) / np.sqrt(2000)
    assert np.all(np.abs(means - 0.2) < 4.5 * errors)


def test_a_lift_is_found_in_time():
    rng = np.random.default_rng(3)
    treated = rng.random(4000) < 0.1
    outcomes = (rng.random(4000) < np.where(treated, 0.7, 0.5)).astype(float)
    sequence = lift_sequence(treated, outcomes, np.full(4000, 0.1))
    assert sequence.low[-1] > 0
    assert sequence.high[-1] - sequence.low[-1] < 0.25


def test_the_predicted_size_is_where_the_interval_becomes_narrow_enough():
    rng = np.random.default_rng(4)
    sequence = mean_sequence((rng.random(500) < 0.5).astype(float))
    n = n_needed(sequence, 0.05)
    assert n is not None
    width = half_width(sequence.variance * np.array([0.9 * n, n]), np.array([0.9 * n, n]), 1.0)
    assert width[0] > 0.05 > width[1]
    assert n_needed(sequence, 0.0) is None


def test_no_observation_gives_an_empty_sequence():
    sequence = mean_sequence(np.array([]))
    assert [len(each) for each in sequence[:3]] == [0, 0, 0]
