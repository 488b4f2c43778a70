from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amc_agents.errors import AllWeightsZero, ConfigurationError
from amc_agents.smc import SCHEMES, keep_in_place, normalised, resolve_scheme

every_scheme = pytest.mark.parametrize("name", sorted(SCHEMES))
seeds = st.integers(0, 2**32 - 1)
populations = st.lists(st.one_of(st.floats(-50, 50), st.just(-np.inf)), min_size=1, max_size=20).filter(
    lambda log_weights: max(log_weights) > -np.inf
)
ALMOST_ONE = np.nextafter(1.0, 0.0)


class Fixed(np.random.Generator):
    """A generator whose every draw is the same number."""

    def __init__(self, u: float) -> None:
        super().__init__(np.random.PCG64(0))
        self.u = u

    def random(self, size: Any) -> Any:  # type: ignore[override]
        return np.full(size, self.u)


@pytest.mark.thorough
@every_scheme
@settings(deadline=None)
@given(log_weights=populations, seed=seeds, n_offspring=st.integers(1, 30))
def test_a_dead_particle_is_never_an_ancestor(name, log_weights, seed, n_offspring):
    ancestors = SCHEMES[name](np.random.default_rng(seed), np.array(log_weights), n_offspring)
    assert ancestors.shape == (n_offspring,)
    assert np.all(np.array(log_weights)[ancestors] > -np.inf)


@pytest.mark.thorough
@every_scheme
@pytest.mark.parametrize("u", [0.0, 1e-300, 0.5, ALMOST_ONE])
@settings(deadline=None)
@given(log_weights=populations, n_offspring=st.integers(1, 30))
def test_a_dead_particle_is_never_an_ancestor_at_the_ends_of_the_unit_interval(name, u, log_weights, n_offspring):
    padded = np.array([-np.inf, *log_weights, -np.inf])
    ancestors = SCHEMES[name](Fixed(u), padded, n_offspring)
    assert np.all((ancestors > 0) & (ancestors < len(padded) - 1))
    assert np.all(padded[ancestors] > -np.inf)


@every_scheme
def test_rounding_of_the_cumulative_sum_never_lets_a_dead_last_particle_in(name):
    # ten times 0.1 adds up to 0.9999999999999999, below the largest random number
    log_weights = np.log(np.full((2000, 11), 0.1)) + np.random.default_rng(0).normal(0, 1, (2000, 11))
    log_weights[:, -1] = -np.inf
    assert np.any(np.cumsum(normalised(log_weights), axis=-1)[:, -1] <= ALMOST_ONE)
    assert SCHEMES[name](Fixed(ALMOST_ONE), log_weights, 11).max() == 9


@every_scheme
def test_offspring_are_proportional_to_weight(name):
    probabilities = np.array([0.47, 0.0, 0.31, 0.17, 0.05])
    with np.errstate(divide="ignore"):
        log_weights = np.broadcast_to(np.log(probabilities), (40_000, 5))
    ancestors = SCHEMES[name](np.random.default_rng(1), log_weights, 3)
    counts = np.stack([np.sum(ancestors == i, axis=-1) for i in range(5)], axis=-1)
    error = np.abs(counts.mean(0) - 3 * probabilities)
    assert np.all(error <= 4 * counts.std(0) / np.sqrt(len(counts)))


@pytest.mark.thorough
@settings(deadline=None)
@given(log_weights=populations, seed=seeds, n_offspring=st.integers(1, 30))
def test_systematic_and_residual_give_at_least_the_whole_part(log_weights, seed, n_offspring):
    expected = n_offspring * normalised(np.array(log_weights))
    for name in ("systematic", "residual"):
        ancestors = SCHEMES[name](np.random.default_rng(seed), np.array(log_weights), n_offspring)
        counts = np.bincount(ancestors, minlength=len(log_weights))
        assert np.all(counts >= np.floor(expected - 1e-9)), name
        if name == "systematic":
            assert np.all(counts <= np.ceil(expected + 1e-9))


@pytest.mark.parametrize("name", ["systematic", "stratified", "residual"])
def test_equal_weights_lose_nobody(name):
    ancestors = SCHEMES[name](np.random.default_rng(2), np.full((100, 8), -3.0), 8)
    np.testing.assert_array_equal(np.sort(ancestors, axis=-1), np.tile(np.arange(8), (100, 1)))


@settings(deadline=None)
@given(size=st.integers(1, 200), log_weight=st.floats(-800, 800), copies=st.integers(1, 4), seed=seeds)
def test_residual_leaves_nothing_to_chance_where_every_expected_number_is_whole(size, log_weight, copies, seed):
    # n x p rounds just below an integer at N = 9, 10, 11, 17, 22 and others.
    ancestors = SCHEMES["residual"](np.random.default_rng(seed), np.full(size, log_weight), copies * size)
    np.testing.assert_array_equal(np.bincount(ancestors, minlength=size), copies)


@pytest.mark.parametrize("size", [9, 10, 11, 17, 22])
def test_residual_gives_equal_particles_one_offspring_each(size):
    ancestors = SCHEMES["residual"](np.random.default_rng(0), np.full((100, size), -np.log(size)), size)
    np.testing.assert_array_equal(np.sort(ancestors, axis=-1), np.tile(np.arange(size), (100, 1)))


@every_scheme
def test_a_seed_fixes_the_ancestors(name):
    log_weights = np.random.default_rng(3).normal(size=15)
    first, again, other = (SCHEMES[name](np.random.default_rng(seed), log_weights, 15) for seed in (4, 4, 5))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_seed_gives_these_ancestors():
    log_weights = np.log(np.array([0.1, 0.2, 0.3, 0.4]))
    drawn = {name: SCHEMES[name](np.random.default_rng(0), log_weights, 4).tolist() for name in SCHEMES}
    assert drawn == GOLDEN


@every_scheme
def test_one_particle_continues_itself(name):
    assert SCHEMES[name](np.random.default_rng(6), np.array([-7.0]), 1).tolist() == [0]


@every_scheme
def test_all_weights_zero_is_a_named_error(name):
    with pytest.raises(AllWeightsZero):
        SCHEMES[name](np.random.default_rng(7), np.full(4, -np.inf), 4)


def test_schemes_are_found_by_name_or_passed_through():
    assert resolve_scheme("residual") is SCHEMES["residual"]
    assert resolve_scheme(SCHEMES["stratified"]) is SCHEMES["stratified"]
    with pytest.raises(ConfigurationError, match=r"unknown resampling scheme 'best'.*multinomial, residual"):
        resolve_scheme("best")


@given(st.integers(1, 12).flatmap(lambda n: st.lists(st.integers(0, n - 1), min_size=n, max_size=n)))
def test_survivors_stay_in_their_slots(ancestors):
    placed = keep_in_place(np.array(ancestors))
    assert sorted(placed.tolist()) == sorted(ancestors)
    assert all(placed[slot] == slot for slot in set(ancestors))


def test_slots_are_kept_row_by_row():
    rows = np.random.default_rng(8).integers(0, 6, (50, 6))
    np.testing.assert_array_equal(keep_in_place(rows), np.stack([keep_in_place(row) for row in rows]))


GOLDEN = {
    "multinomial": [3, 1, 0, 0],
    "residual": [2, 3, 0, 0],
    "stratified": [1, 2, 2, 3],
    "systematic": [1, 2, 3, 3],
}
