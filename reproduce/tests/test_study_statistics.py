"""The study's statistics: Best-of-N of every N from one pool, against all subsets; intervals over training seeds."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from amc_agents.bench.records import Particles
from amc_agents.bench.statistics import bootstrap_means, t_quantile
from amc_agents.errors import ConfigurationError
from reproduce.study.crossed import crossed_interval
from reproduce.study.subsampling import best_of, distinct_successes, expected_top

RNG = np.random.default_rng(3)
POOL = Particles(
    returns=(0.0, 1.0, 0.25, 1.0, 0.5, 0.0, 0.75, 0.0),
    values=(0.1, 0.9, 0.3, 0.2, 0.95, 0.4, 0.6, 0.05),
    same_as=(0, 1, 2, 1, 4, 0, 6, 7),
)


@pytest.mark.parametrize("n", range(1, 9))
def test_it_is_the_mean_over_all_subsets(n):
    expected = {"oracle": [], "success": [], "deployable": [], "top5": [], "mean_distinct": []}
    for chosen in combinations(range(8), n):
        returns = sorted((POOL.returns[i] for i in chosen), reverse=True)
        expected["oracle"].append(returns[0])
        expected["success"].append(returns[0] >= 0.75)
        expected["deployable"].append(POOL.returns[max(chosen, key=lambda i: POOL.values[i])])
        expected["top5"].append(np.mean(returns[:5]))
        expected["mean_distinct"].append(np.mean([POOL.returns[i] for i in {POOL.same_as[i] for i in chosen}]))
    found = best_of(POOL, n, success=0.75, draws=4000)
    sampled = found.pop("mean_distinct")
    assert sampled == pytest.approx(np.mean(expected.pop("mean_distinct")), abs=0.012)
    assert found.pop("mean") == pytest.approx(np.mean(POOL.returns))
    assert found == {name: pytest.approx(np.mean(values)) for name, values in expected.items()}


def test_equal_values_have_an_equal_chance():
    pool = Particles(returns=(1.0, 0.0, 0.0), values=(0.5, 0.5, 0.1), same_as=(0, 1, 2))
    assert best_of(pool, 3)["deployable"] == 0.5
    # {0, 1}: a half; {0, 2}: 1; {1, 2}: 0.
    assert best_of(pool, 2)["deployable"] == pytest.approx(0.5)


@pytest.mark.parametrize("n", [0, 9])
def test_more_than_the_pool_has_is_refused(n):
    with pytest.raises(ConfigurationError, match=f"from 1 to 8, got {n}"):
        best_of(POOL, n)


def test_training_seeds_that_differ_widen_the_interval():
    noise = RNG.normal(size=(400, 3))
    same, differing = noise + 0.2, noise + np.array([0.7, 0.2, -0.3])
    low, high = crossed_interval(same)
    over_tasks = np.percentile(bootstrap_means(same.mean(axis=1), np.random.default_rng(0), 10_000), [2.5, 97.5])
    assert [low, high] == pytest.approx(over_tasks.tolist(), abs=0.05)
    wide = crossed_interval(differing)
    assert wide[0] < 0 < low < high < wide[1]
    # Three seeds, a standard deviation of 0.5: the mean has an error of 0.29, and t with 2 degrees of freedom is 4.3.
    assert wide[1] - wide[0] == pytest.approx(2 * 4.3 * 0.29, rel=0.2)


@pytest.mark.parametrize("shape", [(1, 3), (5, 1)])
def test_one_task_or_one_seed_has_no_interval(shape):
    with pytest.raises(ConfigurationError, match="2 of each"):
        crossed_interval(np.zeros(shape))


def test_a_budget_between_two_numbers_of_tries_is_interpolated():
    returns = (1.0, 0.0, 0.0, 0.0)
    # One success among four: a subset of n has it with probability n / 4.
    assert expected_top(returns, 2) == pytest.approx(0.5)
    assert expected_top(returns, 2.4) == pytest.approx(0.6)
    assert expected_top(returns, 4, 2) == pytest.approx(0.5)
    assert expected_top(returns, 2, 2) == pytest.approx(0.25)


def test_a_budget_above_the_pool_is_refused():
    with pytest.raises(ConfigurationError, match=r"from 1 to 4, got 4\.5"):
        expected_top((1.0, 0.0, 0.0, 0.0), 4.5)
    with pytest.raises(ConfigurationError, match="from 2 to 4, got 1"):
        expected_top((1.0, 0.0, 0.0, 0.0), 1, 2)


def test_copies_of_a_success_count_once():
    pool = Particles((1.0, 1.0, 1.0, 0.0), (0.0,) * 4, (0, 0, 2, 3))
    assert distinct_successes(pool, 4) == 2
    # Two of four: the pair is met with probability 5/6, the other success with 1/2.
    assert distinct_successes(pool, 2) == pytest.approx(5 / 6 + 1 / 2)


def test_a_crossed_interval_by_hand():
    # Means of tasks 0.5, 2.5 (variance 2), of seeds 1, 2 (variance 1/2): mean squares 4 and 1, so the variance of the
    # mean is 5 / 4, with 25 / (16 + 1) degrees of freedom.
    low, high = crossed_interval(np.array([[0.0, 1.0], [2.0, 3.0]]))
    half = t_quantile(25 / 17) * math.sqrt(5 / 4)
    assert (low, high) == pytest.approx((1.5 - half, 1.5 + half))


def test_a_crossed_interval_covers_what_another_training_would_give():
    # Three seeds that differ, and tasks that do not: Student's t with 2 degrees of freedom, exactly 95%.
    n_trials = 2000
    rng = np.random.default_rng(3)
    found = [crossed_interval(np.repeat(rng.normal(size=(1, 3)), 20, axis=0)) for _ in range(n_trials)]
    covered = sum(low <= 0.0 <= high for low, high in found)
    assert abs(covered - 0.95 * n_trials) < 4 * math.sqrt(n_trials * 0.95 * 0.05)
