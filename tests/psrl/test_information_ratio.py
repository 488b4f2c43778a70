from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.errors import DecisionError
from amc_agents.psrl.ids import least_information_ratio

# Numbers that are equal now and then, 0 now and then, and of any size.
NUMBERS = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(1e-3, 1e3))
ACTIONS = st.integers(1, 6).flatmap(lambda n: st.tuples(*[st.lists(NUMBERS, min_size=n, max_size=n)] * 2))


def ratio_of(probabilities, regrets, gains):
    regret, gain = probabilities @ np.asarray(regrets), probabilities @ np.asarray(gains)
    if regret == 0:
        return 0.0
    return regret**2 / gain if gain > 0 else np.inf


@given(ACTIONS)
def test_no_point_of_a_fine_grid_over_all_pairs_is_better(actions):
    regrets, gains = (np.array(numbers) for numbers in actions)
    decision = least_information_ratio(regrets, gains)
    np.testing.assert_allclose(decision.probabilities.sum(), 1)
    assert (decision.probabilities >= 0).all()
    assert (decision.probabilities > 0).sum() <= 2
    assert decision.ratio == pytest.approx(ratio_of(decision.probabilities, regrets, gains))
    share = np.linspace(0, 1, 1001)
    for i, j in combinations(range(len(regrets)), 2):
        regret, gain = (share * numbers[i] + (1 - share) * numbers[j] for numbers in (regrets, gains))
        with np.errstate(divide="ignore", invalid="ignore"):
            on_grid = np.where(regret == 0, 0, regret**2 / gain)
        assert decision.ratio <= on_grid.min() * (1 + 1e-9)
    if len(regrets) == 1:
        assert decision.probabilities.tolist() == [1]


@pytest.mark.parametrize("seed", range(20))
def test_no_distribution_over_three_actions_is_better(seed):
    rng = np.random.default_rng(seed)
    regrets, gains = rng.random(3), rng.random(3)
    decision = least_information_ratio(regrets, gains)
    simplex = np.array([(a, b, 60 - a - b) for a in range(61) for b in range(61 - a)]) / 60
    assert decision.ratio <= min(ratio_of(point, regrets, gains) for point in simplex) + 1e-12
    drawn = rng.dirichlet([0.3] * 3, 2000)
    assert decision.ratio <= min(ratio_of(point, regrets, gains) for point in drawn) + 1e-12


@pytest.mark.parametrize(
    ("regrets", "gains", "probabilities", "ratio"),
    [
        ([1, 2], [2, 1], [1, 0], 0.5),  # better in both ways; the stationary point alone would take the worse one
        ([2, 1], [1, 2], [0, 1], 0.5),
        ([0.3, 0.2, 0.4], [0, 0, 0], [0, 1, 0], np.inf),  # nothing to learn
        ([0, 0, 0.1], [0, 0.2, 5], [0, 1, 0], 0),  # nothing to lose: the most instructive of those
        ([0, 1], [0, 1], [1, 0], 0),  # surely the best, though it teaches nothing
        ([0, 0], [0, 0], [1, 0], 0),
        ([0.5, 0.5], [1, 2], [0, 1], 0.125),  # equal regrets
        ([0.5, 0.25], [1, 1], [0, 1], 0.0625),  # equal gains
        ([0.5, 0.5], [1, 1], [1, 0], 0.25),
        ([0.5, 0.1], [1, 0], [0.25, 0.75], 0.16),  # one teaches nothing: q = 0.1 / 0.4
    ],
)
def test_the_ends_and_the_degenerate_cases(regrets, gains, probabilities, ratio):
    decision = least_information_ratio(regrets, gains)
    np.testing.assert_allclose(decision.probabilities, probabilities)
    assert decision.ratio == pytest.approx(ratio)


def test_the_unit_of_information_does_not_matter():
    regrets, gains = [0.2, 0.6, 0.9], np.array([0.1, 1.0, 1.2])
    bits, nats = least_information_ratio(regrets, gains), least_information_ratio(regrets, gains * np.log(2))
    np.testing.assert_allclose(bits.probabilities, nats.probabilities)
    assert nats.ratio == pytest.approx(bits.ratio / np.log(2))


@pytest.mark.parametrize(
    ("regrets", "gains", "message"),
    [
        ([], [], "for each action"),
        ([1], [1, 2], "for each action"),
        ([-0.1, 1], [1, 1], "regret to be finite and at least 0"),
        ([0.1, 1], [1, float("nan")], "information gain to be finite"),
        ([0.1, float("inf")], [1, 1], "regret to be finite"),
    ],
)
def test_invalid_estimates_are_refused(regrets, gains, message):
    with pytest.raises(DecisionError, match=message):
        least_information_ratio(regrets, gains)
