from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amc_agents.errors import ConfigurationError
from amc_agents.smc import AtSteps, EssBelow, EveryStep, Never, Schedule

EVEN, UNEVEN = np.zeros(4), np.array([0.0, -9.0, -9.0, -9.0])


@pytest.mark.parametrize("schedule", [AtSteps(4), EssBelow(0.5), EveryStep(), Never()])
def test_each_criterion_is_a_schedule_and_answers_per_population(schedule):
    assert isinstance(schedule, Schedule)
    assert schedule.triggered(1, np.zeros((2, 3, 4))).shape == (2, 3)
    assert schedule.triggered(1, np.zeros(4)).shape == ()


def test_fixed_steps_are_the_only_points():
    schedule = AtSteps(12, 4)
    assert [schedule.next_point(step) for step in (0, 3, 4, 11, 12)] == [4, 4, 12, 12, None]
    assert schedule.triggered(4, EVEN)
    assert not schedule.triggered(5, UNEVEN)


def test_fixed_steps_are_a_value():
    assert AtSteps(12, 4) == AtSteps(4, 12) != AtSteps(4)
    assert hash(AtSteps(12, 4)) == hash(AtSteps(4, 12))
    assert repr(AtSteps(12, 4)) == "AtSteps(4, 12)"
    assert eval(repr(AtSteps(4))) == AtSteps(4)
    assert AtSteps(np.int64(4)) == AtSteps(4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((), "Never"),
        ((0,), "from 1.*got 0"),
        ((-3,), "got -3"),
        ((4, 4), "distinct steps; got 4, 4"),
        ((2.0,), "got 2.0"),
        ((True,), "got True"),
        (([4, 12],), r"got \[4, 12\]"),
    ],
)
def test_wrong_steps_are_refused(steps, message):
    with pytest.raises(ConfigurationError, match=message):
        AtSteps(*steps)


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.01, float("nan")])
def test_a_wrong_threshold_is_refused(threshold):
    with pytest.raises(ConfigurationError, match=r"share in \(0, 1\].*got"):
        EssBelow(threshold)


def test_points_of_the_other_criteria():
    assert [EssBelow(0.5).next_point(step) for step in (0, 7)] == [1, 8]
    assert [EveryStep().next_point(step) for step in (0, 7)] == [1, 8]
    assert Never().next_point(0) is None


def test_always_and_never():
    assert EveryStep().triggered(3, EVEN)
    assert not Never().triggered(3, UNEVEN)


def test_uneven_weights_trigger_the_ess_criterion():
    np.testing.assert_array_equal(EssBelow(0.5).triggered(1, np.stack([EVEN, UNEVEN])), [False, True])


def test_failed_particles_lower_the_ess():
    assert EssBelow(0.8).triggered(1, np.array([0.0, 0.0, 0.0, -np.inf]))
    assert not EssBelow(0.7).triggered(1, np.array([0.0, 0.0, 0.0, -np.inf]))
    assert EssBelow(0.5).triggered(1, np.full(4, -np.inf))


def test_the_trigger_looks_at_live_particles_only():
    live = np.array([False, True, True, True])
    assert not EssBelow(0.9).triggered(1, UNEVEN, live)
    assert EssBelow(0.9).triggered(1, UNEVEN)
    assert not EssBelow(1.0).triggered(1, EVEN, np.zeros(4, dtype=bool))


@given(st.lists(st.integers(1, 50), min_size=1, unique=True), st.integers(0, 60))
def test_the_next_point_is_the_first_one_after(steps, step):
    point = AtSteps(*steps).next_point(step)
    later = [s for s in steps if s > step]
    assert point == (min(later) if later else None)
