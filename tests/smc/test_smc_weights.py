from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from amc_agents.errors import AllWeightsZero, PopulationError
from amc_agents.smc import ess, log_mean_exp, log_sum_exp, normalised

log_weight = st.one_of(st.floats(-1e4, 1e4), st.just(-np.inf))
populations = arrays(np.float64, array_shapes(min_dims=1, max_dims=3, max_side=6), elements=log_weight)


def alive(log_weights):
    log_weights = log_weights.copy()
    log_weights[..., 0] = np.where(np.isneginf(log_weights[..., 0]), 0.0, log_weights[..., 0])
    return log_weights


def test_log_sum_exp_does_not_overflow():
    assert log_sum_exp(np.array([1e4, 1e4])) == pytest.approx(1e4 + np.log(2))
    assert log_sum_exp(np.array([-1e4, -1e4])) == pytest.approx(-1e4 + np.log(2))


def test_log_sum_exp_of_zero_weights_is_minus_infinity_row_by_row():
    totals = log_sum_exp(np.array([[-np.inf, -np.inf], [-np.inf, 0.5]]))
    assert totals.tolist() == [-np.inf, 0.5]


@given(populations)
def test_log_sum_exp_agrees_with_numpy(log_weights):
    np.testing.assert_allclose(
        log_sum_exp(log_weights), np.logaddexp.reduce(log_weights, axis=-1), rtol=1e-12, atol=1e-9
    )


@given(populations)
def test_the_mean_counts_dead_particles_in_the_divisor(log_weights):
    expected = log_sum_exp(log_weights) - np.log(log_weights.shape[-1])
    np.testing.assert_array_equal(log_mean_exp(log_weights), expected)


@given(populations.map(alive), st.floats(-1e3, 1e3))
def test_probabilities_sum_to_one_and_ignore_a_common_factor(log_weights, shift):
    probabilities = normalised(log_weights)
    np.testing.assert_allclose(probabilities.sum(-1), 1.0, rtol=1e-9)
    np.testing.assert_allclose(normalised(log_weights + shift), probabilities, atol=1e-9)
    assert np.all(probabilities[np.isneginf(log_weights)] == 0.0)


@given(populations.map(alive))
def test_ess_lies_between_one_and_the_number_of_particles(log_weights):
    assert np.all(ess(log_weights) >= 1 - 1e-9)
    assert np.all(ess(log_weights) <= log_weights.shape[-1] * (1 + 1e-9))


def test_ess_of_known_weights():
    assert ess(np.log([0.5, 0.5])) == pytest.approx(2.0)
    assert ess(np.array([3.0, -np.inf, -np.inf])) == pytest.approx(1.0)
    assert ess(np.log([0.75, 0.25])) == pytest.approx(1 / (0.75**2 + 0.25**2))


@pytest.mark.parametrize("function", [normalised, ess])
def test_no_weight_left_in_any_row_is_a_named_error(function):
    with pytest.raises(AllWeightsZero, match="all 3 particles have weight 0"):
        function(np.array([[0.0, 0.0, 0.0], [-np.inf] * 3]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_nan_and_infinity_are_refused(bad):
    with pytest.raises(PopulationError, match="NaN or"):
        normalised(np.array([0.0, bad]))
