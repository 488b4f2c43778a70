import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.errors import ConfigurationError
from amc_agents.lac.improvement import (
    choose,
    frequency_prior,
    improved,
    likelihood_prior,
    mean_over_thoughts,
)

odds = st.lists(st.tuples(st.floats(-8, 0), st.floats(-6, 6)), min_size=1, max_size=8)


def test_a_frequency_prior_counts_each_sample_once_and_a_forced_one_as_a_pseudo_count():
    assert np.exp(frequency_prior(np.array([3, 1, 1]))) == pytest.approx([0.6, 0.2, 0.2])
    assert np.exp(frequency_prior(np.array([3, 2, 0]), greedy=2)) == pytest.approx([3 / 6, 2 / 6, 1 / 6])
    assert np.exp(frequency_prior(np.array([3, 2]), greedy=0)) == pytest.approx([4 / 6, 2 / 6])


def test_texts_of_one_action_add_up():
    found = likelihood_prior(np.log([0.2, 0.1, 0.3]), np.array([0, 1, 0]), 3)
    assert np.exp(found) == pytest.approx([0.5, 0.1, 0.0])


def test_thoughts_are_averaged_over_all_that_were_sampled():
    table = np.log(np.array([[0.9, 0.1], [0.9, 0.1], [0.0001, 0.6]]))
    assert np.exp(mean_over_thoughts(table)) == pytest.approx([1.8001 / 3, 0.8 / 3])


@given(odds)
def test_alpha_zero_is_the_prior_and_infinity_the_critic(pairs):
    log_prior, q = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    prior = np.exp(log_prior) / np.exp(log_prior).sum()
    assert improved(log_prior, q, 0.0) == pytest.approx(prior)
    alone = improved(log_prior, q, math.inf)
    assert set(np.flatnonzero(alone)) <= set(np.flatnonzero(q == q.max()))
    assert alone.sum() == pytest.approx(1.0)


@given(odds, st.floats(0, 10), st.floats(-3, 3))
def test_the_improved_policy_is_the_closed_form_whatever_is_added_to_q(pairs, alpha, shift):
    log_prior, q = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    expected = np.exp(log_prior) * np.exp(alpha * (q - q.max()))
    assert improved(log_prior, q, alpha) == pytest.approx(expected / expected.sum(), rel=1e-6, abs=1e-300)
    assert improved(log_prior, q + shift, alpha) == pytest.approx(improved(log_prior, q, alpha), rel=1e-6, abs=1e-12)


def test_known_success_probabilities_give_prior_times_odds_to_the_alpha():
    prior, p = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.6, 0.9])
    for alpha in (0.5, 1.0, 2.0):
        weights = prior * (p / (1 - p)) ** alpha
        found = improved(np.log(prior), np.log(p) - np.log1p(-p), alpha)
        assert found == pytest.approx(weights / weights.sum())
        assert choose(found, np.log(prior)) == int(np.argmax(weights))


def test_an_action_of_no_prior_is_never_chosen():
    found = improved(np.array([-np.inf, 0.0]), np.array([50.0, -1.0]), 5.0)
    assert found.tolist() == [0.0, 1.0]
    assert improved(np.array([-np.inf, 0.0]), np.array([50.0, -1.0]), math.inf).tolist() == [0.0, 1.0]


def test_a_tie_goes_to_the_prior_then_to_the_first():
    log_prior = np.log([0.2, 0.5, 0.3])
    equal = np.full(3, 1 / 3)
    assert choose(equal, log_prior) == 1
    assert choose(equal, np.log(equal)) == 0
    # Rounding does not decide.
    assert choose(np.array([1 / 3 + 1e-16, 1 / 3, 1 / 3 - 1e-16]), log_prior) == 1


def test_sampling_follows_the_probabilities_and_the_seed():
    probabilities = np.array([0.1, 0.7, 0.2])
    drawn = [choose(probabilities, np.zeros(3), np.random.default_rng(seed)) for seed in range(4000)]
    assert np.bincount(drawn) / 4000 == pytest.approx(probabilities, abs=0.03)
    assert choose(probabilities, np.zeros(3), np.random.default_rng(3)) == drawn[3]


@pytest.mark.parametrize("alpha", [-0.1, math.nan])
def test_an_alpha_that_means_nothing_is_refused(alpha):
    with pytest.raises(ConfigurationError, match="alpha"):
        improved(np.zeros(2), np.zeros(2), alpha)
