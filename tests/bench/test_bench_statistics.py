from __future__ import annotations

import math

import numpy as np
import pytest

from amc_agents.bench.statistics import (
    ENOUGH_TASKS,
    Estimate,
    bootstrap_means,
    estimate,
    mean_interval,
    paired,
    t_quantile,
)
from amc_agents.errors import ConfigurationError


def test_a_task_counts_once_however_many_seeds_it_has():
    found = estimate({("a", 0): 1.0, ("b", 0): 0.0, ("b", 1): 0.0, ("b", 2): 0.6})
    assert found.mean == pytest.approx((1.0 + 0.2) / 2)
    # Of two values the standard error is half their distance.
    assert found.standard_error == pytest.approx(0.4)
    assert (found.tasks, found.seeds) == (2, 3)


def test_standard_error_by_hand():
    found = estimate({(str(i), 0): x for i, x in enumerate([1.0, 2.0, 3.0, 4.0])})
    assert found.standard_error == pytest.approx(math.sqrt(5 / 3) / 2)


def test_one_task_has_no_spread():
    assert estimate({("a", 0): 1.0}).standard_error is None


def test_nothing_has_no_mean():
    with pytest.raises(ConfigurationError, match="no task"):
        estimate({})
    with pytest.raises(ConfigurationError, match="2 common tasks, got 0"):
        paired({}, {})
    with pytest.raises(ConfigurationError, match="2 common tasks, got 1"):
        paired({("a", 0): 1.0, ("b", 0): 1.0}, {("a", 0): 0.0, ("c", 0): 0.0})


def test_only_common_pairs_are_compared():
    a = {("x", 0): 1.0, ("x", 1): 100.0, ("y", 0): 1.0, ("z", 0): 100.0}
    b = {("x", 0): 0.0, ("y", 0): 0.5, ("w", 0): -100.0}
    found = paired(a, b)
    assert found.difference == pytest.approx(0.75)
    assert (found.tasks, found.seeds) == (2, 1)


def test_a_constant_difference_is_certain():
    found = paired({(str(i), 0): i + 0.25 for i in range(9)}, {(str(i), 0): float(i) for i in range(9)})
    assert (found.difference, found.low, found.high, found.standard_error) == (0.25, 0.25, 0.25, 0.0)


def test_pairing_takes_the_tasks_difficulty_out():
    difficulty = np.random.default_rng(0).normal(0, 10, 50)
    noise = np.random.default_rng(1).normal(0, 0.1, 50)
    a = {(str(i), 0): difficulty[i] + 0.5 + noise[i] for i in range(50)}
    b = {(str(i), 0): difficulty[i] for i in range(50)}
    found = paired(a, b)
    assert 0.4 < found.low < found.high < 0.6
    alone = estimate(a).standard_error
    assert alone is not None
    assert alone > 1


def test_the_bootstrap_of_coins_agrees_with_the_binomial():
    # The mean of n resampled coins is binomial(n, p) / n.
    values = np.repeat([0.0, 1.0], [70, 30])
    means = bootstrap_means(values, np.random.default_rng(0), 100_000)
    assert means.mean() == pytest.approx(0.3, abs=4 * 0.0458 / math.sqrt(100_000))
    assert means.std() == pytest.approx(math.sqrt(0.3 * 0.7 / 100), rel=0.02)
    assert np.mean(means <= 0.25) == pytest.approx(0.1631, abs=0.006)


def test_the_interval_agrees_with_the_normal_one_where_that_holds():
    values = np.random.default_rng(5).normal(0.1, 1.0, 2000)
    found = paired({(str(i), 0): x for i, x in enumerate(values)}, {(str(i), 0): 0.0 for i in range(2000)})
    assert found.high - found.difference == pytest.approx(1.96 * found.standard_error, rel=0.05)
    assert found.difference - found.low == pytest.approx(1.96 * found.standard_error, rel=0.05)


@pytest.mark.thorough
@pytest.mark.parametrize("n_tasks", [5, 10, 20])
def test_the_interval_of_few_tasks_covers_as_often_as_it_says(n_tasks):
    # Exactly 95%: the number of covering intervals is binomial(4000, .95), within 4 standard deviations of its mean.
    # A percentile bootstrap covers 84% of the time with 5 tasks, 90% with 10 and 93% with 20.
    n_trials = 4000
    zeros = {(str(i), 0): 0.0 for i in range(n_tasks)}
    drawn = np.random.default_rng(7).normal(0.0, 1.0, (n_trials, n_tasks)).tolist()
    found = [paired({(str(i), 0): x for i, x in enumerate(row)}, zeros) for row in drawn]
    covered = sum(one.low <= 0.0 <= one.high for one in found)
    assert abs(covered - 0.95 * n_trials) < 4 * math.sqrt(n_trials * 0.95 * 0.05)


def test_the_bootstrap_of_enough_tasks_covers_nearly_as_often_as_it_says():
    rng = np.random.default_rng(7)
    zeros = {(str(i), 0): 0.0 for i in range(ENOUGH_TASKS)}
    covered = 0
    for _ in range(400):
        drawn = enumerate(rng.normal(0.0, 1.0, ENOUGH_TASKS))
        found = paired({(str(i), 0): x for i, x in drawn}, zeros, n_resamples=1000)
        covered += found.low <= 0.0 <= found.high
    assert 0.90 < covered / 400 < 0.98


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (9, 2.2622), (49, 2.0096), (1e4, 1.9602)]
)
def test_t_quantiles_are_those_of_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-4)


@pytest.mark.parametrize(("freedom", "quantile"), [(5, 4.0321), (30, 2.75)])
def test_t_quantiles_of_smaller_tails_are_those_of_tables(freedom, quantile):
    assert t_quantile(freedom, 0.995) == pytest.approx(quantile, abs=1e-3)


def test_the_order_of_records_does_not_matter_and_a_swap_changes_the_sign():
    rng = np.random.default_rng(2)
    a = {(f"{i}", s): float(rng.random()) for i in range(20) for s in range(2)}
    b = {key: float(rng.random()) for key in a}
    assert paired(dict(reversed(a.items())), b) == paired(a, b)
    assert paired(b, a).difference == -paired(a, b).difference
    assert paired(b, a).low == pytest.approx(-paired(a, b).high)


def test_blocks_of_resamples_lose_none():
    assert bootstrap_means(np.arange(500.0), np.random.default_rng(0), 10_000).shape == (10_000,)


def test_the_interval_of_a_mean_is_students_and_that_of_a_paired_difference():
    assert mean_interval(Estimate(0.5, 0.1, 10, 1)) == pytest.approx(
        (0.5 - 0.1 * 2.262157, 0.5 + 0.1 * 2.262157), abs=1e-5
    )
    assert mean_interval(Estimate(0.5, None, 1, 1)) is None
    scores = {(f"t{i}", 0): i / 7 % 1 for i in range(20)}
    difference = paired(scores, dict.fromkeys(scores, 0.0))
    assert mean_interval(estimate(scores)) == pytest.approx((difference.low, difference.high))
