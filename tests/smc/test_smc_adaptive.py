"""Populations that grow at a resampling, and the arithmetic of `Adaptive`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from amc_agents import smc
from amc_agents.errors import ConfigurationError, PopulationError
from amc_agents.smc import SCHEMES, Adaptive, overtaking_by_agreement, overtaking_by_value
from amc_agents.testing.enumerable import EnumerableWorld

WORLD, BETA = EnumerableWorld.random(3), 0.7
SMALL, N_RUNS = 3, 12_000


def unevenly(state):
    """Sizes that depend on the weights: a population doubles if one particle has more than its share of the weight."""
    weights = np.exp(state.log_weights - state.log_weights.max(axis=-1, keepdims=True))
    size = weights.shape[-1]
    share = weights.max(axis=-1) / weights.sum(axis=-1)
    return np.where((share > 1.05 / size) & (size < 4 * SMALL), 2 * size, size)


def estimates(rng, nodes, state, scheme, mode):
    """Run populations of one size `[B, N]` to their ends, in groups of equal sizes, and return their log Z."""
    nodes = WORLD.advance(rng, nodes)
    leaf = WORLD.is_leaf[nodes]
    state = smc.weigh(state, WORLD.rewards_seen(BETA)(nodes))
    if leaf.all():
        return smc.log_evidence(state), [nodes.shape[-1]]
    alive = (~leaf).any(axis=-1)
    sizes = np.where(alive, unevenly(state), nodes.shape[-1])
    found, reached = [], []
    for size in np.unique(sizes):
        for acting in (True, False):
            group = (sizes == size) & (alive == acting)
            if not group.any():
                continue
            mine = smc.FilterState(*(getattr(state, name)[group] for name in state.__slots__))
            after, info = smc.resample(rng, mine, leaf[group], scheme, mode, mask=acting, n_offspring=int(size))
            below = np.take_along_axis(nodes[group], info.ancestors, axis=-1)
            log_z, more = estimates(rng, below, after, scheme, mode)
            found.append(log_z)
            reached += more
    return np.concatenate(found), reached


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["keep", "retire"])
@pytest.mark.parametrize("scheme", ["systematic", "multinomial"])
def test_the_evidence_is_unbiased_under_growth_that_depends_on_the_weights(scheme, mode):
    rng = np.random.default_rng(1)
    nodes = np.zeros((N_RUNS, SMALL), dtype=np.int64)
    log_evidence, sizes = estimates(rng, nodes, smc.init(SMALL, (N_RUNS,)), scheme, mode)
    assert {SMALL, 2 * SMALL, 4 * SMALL} <= set(sizes)
    assert len(log_evidence) == N_RUNS
    ratio = np.exp(log_evidence - WORLD.log_evidence(BETA))
    error = np.std(ratio, ddof=1) / np.sqrt(N_RUNS)
    assert error < 0.01
    assert abs(ratio.mean() - 1.0) < 4 * error


@pytest.mark.parametrize("scheme", sorted(SCHEMES))
def test_offspring_of_a_grown_population_share_the_weight_and_survivors_stay_in_their_slots(scheme):
    state = smc.weigh(smc.init(3), np.log([0.6, 1e-12, 0.4]))
    after, info = smc.resample(np.random.default_rng(0), state, np.zeros(3, dtype=bool), scheme, n_offspring=8)
    assert info.ancestors.shape == (8,)
    assert (info.ancestors[0], info.ancestors[2]) == (0, 2)
    assert 1 not in info.ancestors
    np.testing.assert_allclose(np.exp(after.log_weights), np.full(8, np.exp(smc.log_evidence(state)) / 8))
    np.testing.assert_allclose(after.potentials, state.potentials[info.ancestors])
    assert smc.log_evidence(after) == pytest.approx(float(smc.log_evidence(state)))


def test_a_population_without_live_particles_keeps_its_size():
    state = smc.init(2)
    after, info = smc.resample(np.random.default_rng(0), state, np.ones(2, dtype=bool), n_offspring=6)
    assert not info.resampled
    assert after.log_weights.shape == info.ancestors.shape == (2,)


def test_rounds_are_averaged_by_their_numbers_of_particles():
    first = smc.weigh(smc.init(3), np.log([0.5, 1.0, 3.0]))
    both, scale = smc.begin_again(first, earlier=3, n_particles=6)
    second = smc.weigh(both, np.log(np.full(6, 4.0)))
    assert np.exp(scale) == pytest.approx(1 / 3)
    assert np.exp(smc.log_evidence(second)) == pytest.approx((3 * 1.5 + 6 * 4.0) / 9)
    np.testing.assert_allclose(second.log_weights_since, np.log(4.0))


def test_another_round_doubles_the_particles_up_to_the_maximum():
    assert [Adaptive(4, 30).next_round(earlier) for earlier in (4, 8, 16, 30)] == [4, 8, 14, 0]
    assert Adaptive(4, 30).next_size(4, math.nan, earlier=20) == 8
    assert Adaptive(4, 30).next_size(8, 0.0, earlier=20) == 10


def test_a_population_cannot_shrink_and_a_batch_grows_as_a_whole():
    rng = np.random.default_rng(0)
    with pytest.raises(PopulationError, match="at least as many offspring as particles: 3, got 2"):
        smc.resample(rng, smc.init(3), np.zeros(3, dtype=bool), n_offspring=2)
    finished = np.array([[True, True], [False, False]])
    with pytest.raises(PopulationError, match="cannot grow"):
        smc.resample(rng, smc.init(2, (2,)), finished, n_offspring=4)


def test_the_next_size_suffices_for_a_success_and_never_shrinks():
    rule = Adaptive(start=2, most=40, confidence=0.9)
    for success in (0.07, 0.2, 0.5):
        size = rule.next_size(2, success)
        assert 1 - (1 - success) ** size >= 0.9 > 1 - (1 - success) ** (size - 1)
    assert rule.next_size(10, 0.9) == 10
    assert rule.next_size(10, 1.0) == 10
    assert rule.next_size(10, 0.0) == rule.next_size(10, 1e-300) == 40
    assert [rule.next_size(size, math.nan) for size in (2, 10, 30)] == [4, 20, 40]
    assert Adaptive(2, 8, 1.0).next_size(2, 0.5) == 8


def test_the_bound_by_value_holds_for_dependent_particles():
    assert overtaking_by_value(0.7, 0.5, 8) == pytest.approx(0.3)
    assert overtaking_by_value(0.0, 0.01, 8) == pytest.approx(0.08)
    assert overtaking_by_value(0.0, 0.5, 8) == overtaking_by_value(0.0, math.nan, 8) == 1.0
    assert overtaking_by_value(1.0, math.nan, 8) == 0.0


@pytest.mark.parametrize(("votes", "rivals"), [(0, 0), (1, 0), (4, 0), (5, 2), (3, 7)])
def test_agreement_is_the_posterior_of_a_uniform_prior(votes, rivals):
    share = (np.arange(200_000) + 0.5) / 200_000
    density = share**votes * (1 - share) ** rivals
    exact = density[share < 0.5].sum() / density.sum()
    assert overtaking_by_agreement(votes, rivals) == pytest.approx(exact, abs=1e-6)


def test_decisions_need_the_confidence():
    assert Adaptive(confidence=0.95).decides(0.05)
    assert not Adaptive(confidence=0.95).decides(0.051)
    assert Adaptive(confidence=1.0).decides(0.0)
    assert not Adaptive(confidence=1.0).decides(1e-6)


def test_the_form_of_files_is_read_back():
    assert Adaptive.parse("4..32") == Adaptive(4, 32)
    assert str(Adaptive(2, 8)) == "2..8"
    assert str(Adaptive(2, 8, 0.8)) == "2..8 at 0.8"


@pytest.mark.parametrize("text", ["4", "4-32", "4..", "..8", "4..8..9", "-1..4", ""])
def test_other_forms_are_refused(text):
    with pytest.raises(ConfigurationError, match=r'"start..most" such as "4..32"'):
        Adaptive.parse(text)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0, 4), "start must be a whole number of at least 1, got 0"),
        ((True, 4), "start must be a whole number of at least 1, got True"),
        ((1, 4.0), "most must be a whole number of at least 1, got 4.0"),
        ((5, 4), "start=5 must not exceed most=4"),
        ((1, 4, 0.5), r"confidence must lie in \(0.5, 1\], got 0.5"),
        ((1, 4, 1.1), r"confidence must lie in \(0.5, 1\], got 1.1"),
    ],
)
def test_sizes_out_of_range_are_refused(arguments, sentence):
    with pytest.raises(ConfigurationError, match=sentence):
        Adaptive(*arguments)
