from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amc_agents.errors import AllWeightsZero, ConfigurationError, PopulationError
from amc_agents.smc import SCHEMES, init, log_evidence, log_mean_exp, log_sum_exp, resample, weigh

NOBODY = np.zeros(4, dtype=bool)
potential_rows = st.lists(st.lists(st.floats(-30, 30), min_size=5, max_size=5), min_size=1, max_size=6)


def weighed(*potentials: float):
    return weigh(init(len(potentials)), np.array(potentials))


def test_particles_start_with_equal_shares_of_one():
    state = init(4, batch=(2, 3))
    assert state.log_weights.shape == (2, 3, 4)
    np.testing.assert_allclose(log_evidence(state), np.zeros((2, 3)), atol=1e-12)


def test_a_population_needs_a_particle():
    with pytest.raises(ConfigurationError, match="at least 1; got 0"):
        init(0)


@given(potential_rows)
def test_increments_telescope(rows):
    rows = np.array(rows)
    state = init(5)
    for row in rows:
        state = weigh(state, row)
    at_once = weigh(init(5), rows[-1])
    np.testing.assert_allclose(state.log_weights, at_once.log_weights, atol=1e-9)
    np.testing.assert_allclose(state.log_weights_since, rows[-1], atol=1e-9)
    np.testing.assert_allclose(log_evidence(state), log_mean_exp(rows[-1]), atol=1e-9)


def test_weights_accumulate_when_nothing_is_resampled():
    values = np.array([[0.2, 0.8, 0.8], [0.2, 0.2, 0.2]]).T / 0.5  # worked by hand: shares .769 and .231
    state = init(2)
    for row in values:
        state = weigh(state, row)
    share = np.exp(state.log_weights - log_sum_exp(state.log_weights))
    np.testing.assert_allclose(share, [0.7685, 0.2315], atol=1e-4)


def test_weighing_leaves_the_old_state_as_it_was():
    before = init(3)
    weigh(before, np.array([1.0, 2.0, 3.0]))
    assert np.all(before.potentials == 0.0)


def test_a_particle_whose_potential_is_unknown_keeps_its_weight_until_the_next_weighing():
    before = weighed(1.0, 2.0, 3.0)
    half = weigh(before, np.array([np.nan, 5.0, np.nan]), np.array([False, True, False]))
    np.testing.assert_array_equal(half.log_weights[[0, 2]], before.log_weights[[0, 2]])
    np.testing.assert_array_equal(half.potentials, [1.0, 5.0, 3.0])
    after = weigh(half, np.array([4.0, 5.0, 6.0]))
    np.testing.assert_allclose(after.log_weights, weighed(4.0, 5.0, 6.0).log_weights)
    with pytest.raises(PopulationError, match="NaN"):
        weigh(before, np.array([np.nan, 5.0, np.nan]))


def test_a_failed_particle_stays_dead_whatever_comes():
    state = weighed(1.0, -np.inf)
    for later in (-np.inf, 5.0):
        state = weigh(state, np.array([1.0, later]))
        assert state.log_weights.tolist() == [1.0 - np.log(2), -np.inf]
        assert state.log_weights_since[1] == -np.inf
    assert log_evidence(state) == pytest.approx(1.0 - np.log(2))


@given(potential_rows, st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 1000))
def test_evidence_is_the_product_of_means_accumulated_between_resamplings(rows, due, seed):
    rng, state, total = np.random.default_rng(seed), init(5), np.array(0.0)
    for row, resample_here in zip(np.array(rows), due, strict=False):
        state = weigh(state, row)
        if resample_here:
            total = total + log_mean_exp(state.log_weights_since)
            state, _ = resample(rng, state, np.zeros(5, dtype=bool))
    total = total + log_mean_exp(state.log_weights_since)
    assert log_evidence(state) == pytest.approx(float(total), abs=1e-8)


@pytest.mark.parametrize("bad", [[0.0, np.nan], [0.0, np.inf], [0.0, 0.0, 0.0], [[0.0, 0.0]]])
def test_wrong_potentials_are_refused(bad):
    with pytest.raises(PopulationError, match="potential"):
        weigh(init(2), np.array(bad))


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", sorted(SCHEMES))
@pytest.mark.parametrize("mode", ["keep", "retire"])
@settings(deadline=None)
@given(
    potentials=st.lists(st.one_of(st.floats(-20, 20), st.just(-np.inf)), min_size=6, max_size=6),
    finished=st.lists(st.booleans(), min_size=6, max_size=6),
    seed=st.integers(0, 1000),
)
def test_resampling_conserves_the_evidence(scheme, mode, potentials, finished, seed):
    state, finished = weighed(*potentials), np.array(finished)
    rng = np.random.default_rng(seed)
    if max(potentials) == -np.inf:
        with pytest.raises(AllWeightsZero, match="resampling point"):
            resample(rng, state, finished, scheme, mode)
        return
    after, info = resample(rng, state, finished, scheme, mode)
    assert log_evidence(after) == pytest.approx(float(log_evidence(state)), abs=1e-9)
    np.testing.assert_array_equal(after.potentials, state.potentials[info.ancestors])
    if not info.resampled:
        np.testing.assert_array_equal(after.log_weights, state.log_weights)
        np.testing.assert_array_equal(info.ancestors, np.arange(6))
        assert not info.retired.any()
        return
    assert np.all(state.log_weights[info.ancestors] > -np.inf)
    assert np.ptp(after.log_weights) == 0.0
    assert np.all(after.log_weights_since == 0.0)
    if mode == "retire":
        np.testing.assert_array_equal(info.retired, finished)
        assert not finished[info.ancestors].any()
        np.testing.assert_array_equal(info.retired_log_weights[finished], state.log_weights[finished])
        assert np.all(info.retired_log_weights[~finished] == -np.inf)
    else:
        assert not info.retired.any()
        assert after.log_retired == -np.inf


def test_offspring_share_the_live_total_equally():
    state = weighed(*np.log([5.0, 2.0, 1.0, 4.0]))
    after, info = resample(np.random.default_rng(0), state, np.array([True, False, False, False]))
    np.testing.assert_allclose(np.exp(after.log_weights), np.full(4, 7 / 16))
    assert np.exp(after.log_retired) == pytest.approx(5 / 4)
    assert info.retired.tolist() == [True, False, False, False]


def test_retired_weight_adds_up_over_several_resamplings():
    rng = np.random.default_rng(1)
    first = np.array([True, False, False, False])
    state, _ = resample(rng, weighed(*np.log([5.0, 2.0, 1.0, 4.0])), first)
    state, _ = resample(rng, state, first)
    assert np.exp(state.log_retired) == pytest.approx(5 / 4 + 7 / 16)
    np.testing.assert_allclose(np.exp(state.log_weights), np.full(4, 21 / 64))


def test_finished_particles_are_resampled_with_the_rest_when_kept():
    state = weighed(9.0, -9.0, -9.0, -9.0)
    _, info = resample(np.random.default_rng(2), state, np.array([True, False, False, False]), mode="keep")
    assert info.ancestors.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("potentials", "finished"),
    [((1.0, 2.0, 3.0, 4.0), [True] * 4), ((1.0, -np.inf, -np.inf, -np.inf), [True, False, False, False])],
)
def test_nothing_happens_without_live_weight(potentials, finished):
    state = weighed(*potentials)
    after, info = resample(np.random.default_rng(3), state, np.array(finished))
    assert not info.resampled
    assert info.ancestors.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(after.log_weights, state.log_weights)
    np.testing.assert_array_equal(after.log_weights_since, state.log_weights_since)


def test_live_particles_may_all_fail_once_some_have_been_retired():
    rng = np.random.default_rng(4)
    state, _ = resample(rng, weighed(1.0, 2.0, 3.0, 4.0), np.array([True, False, False, False]))
    state = weigh(state, np.full(4, -np.inf))
    state, info = resample(rng, state, NOBODY)
    assert not info.resampled
    assert log_evidence(state) == pytest.approx(1.0 - np.log(4))


def test_all_weights_zero_is_a_named_error():
    with pytest.raises(AllWeightsZero, match="all 4 particles have weight 0 at a resampling point"):
        resample(np.random.default_rng(5), weighed(*[-np.inf] * 4), NOBODY)


def test_only_masked_populations_are_resampled():
    potentials = np.array([[9.0, 0, 0, 0], [9.0, 0, 0, 0], [-np.inf] * 4])
    state = weigh(init(4, (3,)), potentials)
    mask = np.array([True, False, False])
    after, info = resample(np.random.default_rng(6), state, np.zeros((3, 4), dtype=bool), mask=mask)
    assert info.resampled.tolist() == mask.tolist()
    assert info.ancestors[1].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(after.log_weights[1:], state.log_weights[1:])
    assert np.ptp(after.log_weights[0]) == 0.0


@pytest.mark.parametrize("mode", ["keep", "retire"])
def test_one_particle_works(mode):
    state, info = resample(np.random.default_rng(7), weighed(2.5), np.array([False]), mode=mode)
    assert info.ancestors.tolist() == [0]
    assert log_evidence(state) == pytest.approx(2.5)


def test_a_seed_fixes_the_resampling():
    state = weigh(init(15), np.random.default_rng(8).normal(size=15))
    first, again = (resample(np.random.default_rng(9), state, np.zeros(15, dtype=bool))[1] for _ in range(2))
    np.testing.assert_array_equal(first.ancestors, again.ancestors)


def test_survivors_keep_their_slots():
    state = weigh(init(15), np.random.default_rng(10).normal(size=15))
    _, info = resample(np.random.default_rng(11), state, np.zeros(15, dtype=bool), scheme="multinomial")
    assert all(info.ancestors[slot] == slot for slot in set(info.ancestors.tolist()))
    assert len(set(info.ancestors.tolist())) < 15


def test_unknown_settings_are_refused():
    with pytest.raises(ConfigurationError, match="'retire' or 'keep'; got 'drop'"):
        resample(np.random.default_rng(12), init(4), NOBODY, mode="drop")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="unknown resampling scheme"):
        resample(np.random.default_rng(12), init(4), NOBODY, scheme="best")
